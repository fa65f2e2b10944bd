"""A model that replays stored replies: for tests, demonstrations, and bug reports.

A recording is JSON lines; each line is one assistant message of the chat API (`role`, `content`,
`tool_calls`), so that anybody can write one by hand. A line may also carry the `finish_reason`
that came with its message.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from worker.errors import (
    Cancelled,
    InputInvalid,
    ModelUnavailable,
    RecordingInvalid,
    Stop,
)
from worker.messages import Reply, Wire
from worker.models.base import Request
from worker.models.normal import normal_finish, normal_message
from worker.models.streaming import read_json
from worker.reading import open_plain

_POLL_S = 0.1
_CHUNK_BYTES = 65536
_MOST_BYTES = 256 * 1024 * 1024  # through a pipe, which may have no end


def never() -> bool:
    return False


class RecordedModel:
    """See `worker.models.base.Model`. Which reply is next follows from the request alone.

    A recording that comes through a pipe is waited for, until `is_cancelled` says so.
    """

    def __init__(self, path: Path, is_cancelled: Callable[[], bool] = never) -> None:
        self.name = f"recording {path.name}"
        self._replies = replies_in(read_recording(path, is_cancelled), path)

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        del timeout_s, is_cancelled
        if request.is_summary:
            raise ModelUnavailable(f"{self.name} has no summaries")
        if request.turn >= len(self._replies):
            raise Stop(
                f"the recording has no more replies after {len(self._replies)}",
                kind="RecordingExhausted",
            )
        is_last = request.turn + 1 == len(self._replies)
        known = {"model": self.name, "is_last": is_last}
        return self._replies[request.turn].model_copy(update=known)

    def close(self) -> None:
        """Nothing is held open."""


def read_recording(path: Path, is_cancelled: Callable[[], bool] = never) -> bytes:
    """Return what is in a file or comes through a pipe. Raises `InputInvalid`, `Cancelled`."""
    try:
        return b"".join(_chunks(path, is_cancelled))
    except OSError as error:
        raise InputInvalid(f"cannot read the recording {path}: {error.strerror}") from error


def replies_in(data: bytes, path: Path) -> list[Reply]:
    """The replies of a recording that was read from `path`. Raises `RecordingInvalid`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RecordingInvalid(f"{path} is not UTF-8 text") from error
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise RecordingInvalid(f"{path} has no replies")
    return [_reply(line, f"{path}, line {number}") for number, line in lines]


def _chunks(path: Path, is_cancelled: Callable[[], bool]) -> Iterator[bytes]:
    # Without O_NONBLOCK, opening a FIFO waits for a writer and hears no signal meanwhile.
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(source).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise InputInvalid(f"the recording {path} is neither a file nor a pipe")
        if stat.S_ISREG(mode):
            yield _plain(path)
            return
        left = _MOST_BYTES
        while chunk := _chunk(source, is_cancelled):
            left -= len(chunk)
            if left < 0:
                raise InputInvalid(f"the recording {path} is longer than {_MOST_BYTES:,} bytes")
            yield chunk
    finally:
        os.close(source)


def _plain(path: Path) -> bytes:
    with open_plain(path) as source:
        return source.read()


def _chunk(source: int, is_cancelled: Callable[[], bool]) -> bytes:
    """The next bytes, or none at the end; a pipe that nobody writes to is at its end at once."""
    data = select.poll()
    data.register(source, select.POLLIN)
    while True:
        try:
            return os.read(source, _CHUNK_BYTES)
        except BlockingIOError:  # there is a writer, which has nothing to say yet
            data.poll(_POLL_S * 1000)
        if is_cancelled():
            raise Cancelled


def _reply(line: str, place: str) -> Reply:
    try:
        wire = read_json(line)
    except ValueError as error:
        raise RecordingInvalid(f"{place}: not JSON: {error}") from error
    if fault := _fault(wire):
        raise RecordingInvalid(f"{place}: {fault}")
    return Reply(message=normal_message(wire), finish=normal_finish(wire.get("finish_reason")))


def _fault(wire: object) -> str | None:
    if not isinstance(wire, dict):
        return "not an object"
    if wire.get("role", "assistant") != "assistant":
        return f"role is {wire['role']!r}; a recording holds the model's messages only"
    if "content" not in wire and "tool_calls" not in wire:
        return "neither content nor tool_calls"
    if not isinstance(wire.get("content"), str | list | None):
        return "content is not text"
    calls = wire.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        return "tool_calls is not a list of {id, type, function: {name, arguments}}"
    return None


def _is_call(call: object) -> bool:
    function: Wire | None = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
