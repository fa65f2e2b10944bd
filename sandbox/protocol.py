"""What a guest may say, checked: nothing from a sandbox goes further than here unread.

A frame is one line of JSON. Its size is bounded before it is parsed, its kind is one of a closed
set, and each field has a type and a limit; anything else is a `ProtocolError`.
"""

from __future__ import annotations

import mimetypes
import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from sandbox import transcript
from sandbox.errors import ProtocolError
from sandbox.guest import wire
from sandbox.guest.wire import MAX_FRAME, MAX_PAYLOAD
from sandbox.types import ErrorInfo, Execution, FileInfo, Interpreter, Outcome

MAX_MESSAGE_CHARS = 4_000
MAX_NAME_CHARS = 200
MAX_LISTED = 10_000
MAX_PARTS = 100_000
TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')

Id = Annotated[str, StringConstraints(max_length=200)]
Text = Annotated[str, StringConstraints(max_length=16_000)]
Base64 = Annotated[str, StringConstraints(max_length=MAX_FRAME)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class Said(BaseModel):
    """A frame from the guest."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Hello(Said):
    """The guest is there; `epoch` is another one in each sandbox."""

    kind: Literal["hello"]
    nonce: Id
    version: Count
    epoch: Id
    python: Id
    running: Id | None
    finished: Annotated[list[Id], Field(max_length=1000)]


class Declined(Said):
    """A request that the guest did not do, and why."""

    kind: Literal["malformed", "refused", "conflict", "fault", "unsuitable"]
    id: Id
    reason: Text


class Stale(Said):
    """A host with a higher generation has been here."""

    kind: Literal["stale"]
    id: Id
    seen: Count


class Answer(Said):
    """What answers the request with this id."""

    id: Id


class Known(Answer):
    """An execution that runs, or that the guest has never heard of."""

    kind: Literal["running", "unknown"]


class Preloaded(Answer):
    """The libraries are loaded, but for those that failed, with their reasons."""

    kind: Literal["preloaded"]
    failed: Annotated[list[Text], Field(max_length=100)]


class Written(Answer):
    """So many bytes are in the file now."""

    kind: Literal["written"]
    size: Count


class Data(Answer):
    """A part of a file, which follows as a payload."""

    kind: Literal["data"]
    payload: Annotated[int, Field(ge=0, le=MAX_PAYLOAD)]
    size: Count
    mtime_ns: int


class Files(Answer):
    """The regular files of the workspace."""

    kind: Literal["files"]
    files: Annotated[list[tuple[Text, Count]], Field(max_length=MAX_LISTED)]


class Bounded(Said):
    """Head and tail of a text of `bytes` bytes."""

    head: Base64
    tail: Base64
    bytes: Count


class Raised(Said):
    """An exception of user code."""

    type: Text
    message: Text
    line: Count | None
    source: Text | None
    frames: list[Text]
    facts: dict[Text, list[Text]]


class Result(Answer):
    """What one call did, as the guest tells it."""

    kind: Literal["result"]
    outcome: Literal["ok", "error", "timeout", "oom", "killed", "output_limit", "exited"]
    exit_code: Annotated[int, Field(ge=-255, le=1024)] | None
    value: Bounded | None
    output: Bounded
    output_file: Text | None
    spilled_bytes: Count
    error: Raised | None
    duration_s: Seconds
    cpu_s: Seconds
    peak_memory_bytes: Count
    interpreter: Literal["kept", "restarted"]
    lost_names: Annotated[list[Text], Field(max_length=1000)]
    files: Annotated[list[tuple[Text, Count]], Field(max_length=1000)]
    background_processes: Count
    limits_met: Annotated[list[Text], Field(max_length=10)]


Frame = Hello | Declined | Stale | Known | Preloaded | Written | Data | Files | Result

_adapter: TypeAdapter[Frame] = TypeAdapter(
    Annotated[Frame, Field(discriminator="kind")],
    # Pydantic else remembers each text for ever, up to some megabytes, and few are said twice.
    config=ConfigDict(cache_strings="keys"),
)


def read(line: bytes) -> Frame:
    """Read one line of a guest; raises `ProtocolError`."""
    if _has_too_many_parts(line):
        raise ProtocolError(f"the guest sent a frame of more than {MAX_PARTS} parts")
    try:
        return _adapter.validate_json(line)
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the guest sent what is no frame: {_shorten(error)}") from error


def _has_too_many_parts(line: bytes) -> bool:
    """Whether there are too many; each wrong part of a frame costs a kilobyte to complain of."""
    if line.count(b",") <= MAX_PARTS:
        return False
    return TEXT.sub(b"", line).count(b",") > MAX_PARTS  # those of names and outputs are no parts


def _shorten(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return str(error)[:300]


def write(kind: str, **fields: object) -> bytes:
    """Write one request as a line."""
    return wire.encode({"kind": kind, **fields})


def unpack(data: str) -> bytes:
    """Read base64; raises `ProtocolError`."""
    try:
        return wire.unpack(data)
    except wire.Malformed as error:
        raise ProtocolError(f"the guest sent what is {error}") from error


def readable(text: str) -> str:
    """A text of the guest, fit for a log."""
    return transcript.clean(text, MAX_NAME_CHARS)


def execution(result: Result, output_bytes: int) -> Execution:
    """Turn a result into what callers see: clean text in bounded sizes.

    Raises `ProtocolError` if the guest has kept more than `output_bytes` of a text.
    """
    output = _render(result.output, output_bytes, _where(result))
    return Execution(
        outcome=Outcome(result.outcome),
        exit_code=result.exit_code,
        value=result.value and _render(result.value, output_bytes).text,
        output=output.text,
        output_truncated=output.truncated,
        output_bytes=result.output.bytes,
        output_file=_clean(result.output_file) if result.output_file else None,
        error=None if result.error is None else _error(result.error),
        duration_s=result.duration_s,
        cpu_s=result.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        interpreter=Interpreter(result.interpreter),
        lost_names=tuple(map(_clean, result.lost_names)),
        files=file_infos(result.files),
        background_processes=result.background_processes,
        limit="; ".join(map(_clean, result.limits_met)) or None,
    )


def file_infos(listing: list[tuple[str, int]]) -> tuple[FileInfo, ...]:
    """Describe files; names that a person could not read are left out."""
    return tuple(
        FileInfo(name=name, size=size, mime=_mime(name))
        for name, size in listing
        if name.isprintable() and _is_inside(name)
    )


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _mime(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _where(result: Result) -> str | None:
    """Say where the text is that is not shown, and how much of it."""
    if not result.output_file:
        return None
    name, kept = _clean(result.output_file), result.spilled_bytes
    whole = kept >= result.output.bytes
    return f"full text in {name}" if whole else f"the first {kept} bytes are in {name}"


def _render(text: Bounded, limit: int, where: str | None = None) -> transcript.Transcript:
    head, tail = unpack(text.head), unpack(text.tail)
    if len(head) + len(tail) > limit:
        raise ProtocolError(f"the guest sent a text of more than {limit} bytes")
    return transcript.render(head, tail, text.bytes, where=where)


def _clean(text: str) -> str:
    return transcript.clean(text, MAX_NAME_CHARS)


def _error(raised: Raised) -> ErrorInfo:
    return ErrorInfo(
        type=_clean(raised.type),
        message=transcript.clean(raised.message, MAX_MESSAGE_CHARS),
        line=raised.line,
        source=None if raised.source is None else transcript.clean(raised.source, 400),
        frames=tuple(transcript.clean(frame, 600) for frame in raised.frames[:20]),
        facts={
            _clean(key): tuple(map(_clean, values[:100]))
            for key, values in list(raised.facts.items())[:10]
        },
    )
