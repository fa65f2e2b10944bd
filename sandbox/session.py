"""One conversation with one guest over a link: the half of a sandbox that all drivers share.

The host waits for an answer with a deadline of its own, later than the guest's, and believes
nothing that `sandbox.protocol` has not checked.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import BinaryIO, TypeVar

from sandbox import protocol
from sandbox.errors import (
    FileRefused,
    GuestTimeout,
    ImageUnsuitable,
    LinkLost,
    ProtocolError,
    SandboxUnavailable,
    StaleGeneration,
)
from sandbox.guest import VERSION
from sandbox.guest.wire import MAX_FRAME, Malformed, Reader
from sandbox.link import Link
from sandbox.protocol import (
    Answer,
    Data,
    Declined,
    Files,
    Frame,
    Hello,
    Known,
    Preloaded,
    Result,
    Stale,
    Written,
)
from sandbox.types import ErrorInfo, Execution, FileInfo, Interpreter, Outcome, SandboxSpec

CHUNK = 2 * 1024 * 1024
SLOWEST = 1024 * 1024  # bytes per second of a file that is waited for
ANSWER_S = 30.0  # for what takes milliseconds, on a machine that is busy
PRELOAD_S = 60.0
LAST_WORDS_S = 1.0
ENDING_S = 15.0  # on top of a call's limit: the guest's grace, its clean-up, a busy machine
MAX_SAID = 4 * MAX_FRAME  # in answer to one request
MAX_FRAMES = 1000
MAX_TEXT = MAX_FRAME - 64 * 1024
MOST_PER_CHARACTER = 12  # bytes of JSON
SURROGATES = re.compile("[\ud800-\udfff]")

_log = logging.getLogger(__name__)
T = TypeVar("T", bound=Answer)


class Session:
    """Speaks the protocol; see `sandbox.base.Sandbox` for what the methods promise."""

    def __init__(self, link: Link, spec: SandboxSpec) -> None:
        self.spec = spec
        self.link = link
        self._reader = Reader(MAX_FRAME)
        self._pending: Data | None = None  # its payload is still to be read
        self._payload = b""  # of the last frame that had one
        self._is_torn = False  # only part of a request was sent
        self._to_acknowledge: list[str] = []
        self._sending = threading.Lock()
        self._received_bytes = self._received_frames = 0

    # --- opening --------------------------------------------------------------------------

    def hello(self, timeout_s: float = ANSWER_S) -> Hello:
        """Open, or re-open, the conversation; whatever came before its answer is thrown away."""
        deadline = time.monotonic() + timeout_s
        return self.hear_hello(self.say_hello(deadline), deadline)

    def send_guest(self, luggage: bytes, deadline: float) -> None:
        """Send the guest to where it will run; it says hello with the nonce in its luggage."""
        self._send(luggage, deadline)

    def say_hello(self, deadline: float) -> str:
        """Send the first words of a host that comes later; returns the nonce of their answer."""
        nonce = uuid.uuid4().hex
        # A newline first: it ends the half-written line of a host that died.
        self._send(
            b"\n" + protocol.write("hello", nonce=nonce, generation=self.spec.generation), deadline
        )
        return nonce

    def hear_hello(self, nonce: str, deadline: float) -> Hello:
        """Wait for the answer with this nonce.

        Raises `ImageUnsuitable`, or `StaleGeneration` if another host owns the sandbox.
        """
        while True:
            try:
                said = self._next(deadline)
            except ProtocolError:
                continue  # the rest of a line to another host
            if isinstance(said, Hello) and said.nonce == nonce:
                return _of_this_version(said)
            if isinstance(said, Declined) and said.kind == "unsuitable":
                raise ImageUnsuitable(f"the image has {said.reason}; 3.9 or newer is needed")
            if isinstance(said, Stale):
                raise StaleGeneration(f"generation {said.seen} owns this sandbox")

    def preload(self, names: Sequence[str]) -> None:
        """Have libraries loaded for the interpreter, before its first call; takes seconds.

        One that cannot be loaded is told in the log. Raises `SandboxUnavailable`, also once a call
        was begun.
        """
        if not names:
            return
        asked = uuid.uuid4().hex
        self._request("preload", id=asked, names=list(names))
        for why in self._await(asked, PRELOAD_S, Preloaded).failed:
            _log.warning("a library was not loaded beforehand: %s", protocol.readable(why))

    # --- calls ----------------------------------------------------------------------------

    def execute(
        self, kind: str, text: str, timeout_s: float, execution_id: str | None
    ) -> Execution:
        """Run code or a command to its end; the same id never runs twice."""
        text = SURROGATES.sub("\ufffd", text)
        refusal = _refusal(text)
        if refusal is not None:
            return refusal
        execution_id = execution_id or uuid.uuid4().hex
        done = [known for known in self._to_acknowledge if known != execution_id]
        self._to_acknowledge = []
        self._request(kind, id=execution_id, text=text, timeout_s=timeout_s, ack=done)
        said = self._await(execution_id, timeout_s + ENDING_S, Answer)
        return self._settle(said, timeout_s)

    def recall(self, execution_id: str) -> Execution | None:
        """Take the result of an execution that an earlier host began; None if it is unknown."""
        self._request("recall", id=execution_id)
        said = self._await(execution_id, ANSWER_S, Answer)
        if isinstance(said, Known) and said.kind == "unknown":
            return None
        return self._settle(said, self.spec.limits.max_life_s)

    def cancel(self) -> None:
        """Ask for the end of what runs; may be called from any thread, and again and again."""
        line = protocol.write("cancel", generation=self.spec.generation, id="")
        self._send(line, time.monotonic() + ANSWER_S)

    def _settle(self, said: Answer, timeout_s: float) -> Execution:
        if not isinstance(said, Result):  # it runs already; its result comes when it ends
            said = self._await(said.id, timeout_s + ENDING_S, Result)
        # Acknowledged with the next call: its coming means that this result has been stored.
        self._to_acknowledge.append(said.id)
        return protocol.execution(said, self.spec.limits.output_bytes)

    # --- files ----------------------------------------------------------------------------

    def write_file(self, name: str, source: BinaryIO) -> int:
        """Write `source` to `name`, a part at a time; returns the size in bytes."""
        under_way: deque[tuple[str, int]] = deque()
        data, first, size = source.read(CHUNK), True, 0
        while True:
            following = source.read(CHUNK) if data else b""
            size += len(data)
            asked = self._send_part(name, data, first=first, last=not following)
            under_way.append((asked, size))
            if not following:
                break
            data, first = following, False
            if len(under_way) > 1:  # the guest writes one while the next is on its way
                self._await_written(*under_way.popleft())
        for asked, so_far in under_way:
            self._await_written(asked, so_far)
        return size

    def _send_part(self, name: str, data: bytes, *, first: bool, last: bool) -> str:
        asked = uuid.uuid4().hex
        fields = {"id": asked, "name": name, "first": first, "last": last, "payload": len(data)}
        self._request("write", **fields, data=data)
        return asked

    def _await_written(self, asked: str, size: int) -> None:
        said = self._await(asked, ANSWER_S, Written).size
        if said != size:
            raise FileRefused(f"the file has {said} bytes after {size} were written to it")

    def read_file(self, name: str, target: BinaryIO, *, max_bytes: int | None = None) -> int:
        """Copy a regular file into `target`; returns its size in bytes."""
        limit = self.spec.limits.read_bytes if max_bytes is None else max_bytes
        asked, offset, started = self._ask_part(name, 0), 0, time.monotonic()
        seen: tuple[int, int] | None = None
        while True:
            left_s = started + ANSWER_S + offset / SLOWEST - time.monotonic()
            part = self._await(asked, left_s, Data)
            data, now = self._payload, (part.size, part.mtime_ns)
            if part.size > limit:
                raise FileRefused(f"{name}: {part.size} bytes, the limit is {limit}")
            if now != (seen or now) or len(data) != min(CHUNK, part.size - offset):
                raise FileRefused(f"{name}: changed while it was read")
            seen, offset = now, offset + len(data)
            if offset < part.size:  # the guest reads the next one while this is put away
                asked = self._ask_part(name, offset)
            target.write(data)
            if offset == part.size:
                return offset

    def _ask_part(self, name: str, offset: int) -> str:
        asked = uuid.uuid4().hex
        self._request("read", id=asked, name=name, offset=offset, size=CHUNK)
        return asked

    def files(self) -> tuple[FileInfo, ...]:
        """List the regular files of the workspace."""
        asked = uuid.uuid4().hex
        self._request("list", id=asked)
        return protocol.file_infos(self._await(asked, ANSWER_S, Files).files)

    # --- ending ---------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End the conversation from any thread; a call in flight gets `LinkLost` at once."""
        self.link.hang_up()

    def close(self) -> None:
        """Close the link, when no call is in flight."""
        self.link.close()

    # --- frames ---------------------------------------------------------------------------

    def _request(self, kind: str, data: bytes = b"", **fields: object) -> None:
        line = protocol.write(kind, generation=self.spec.generation, **fields)
        self._received_bytes = self._received_frames = 0
        try:
            self._send(line + data, time.monotonic() + ANSWER_S)
        except LinkLost:
            self._hear_last_words()
            raise

    def _hear_last_words(self) -> None:
        """Raise the error for what a guest has said of the link's end, if it has said anything.

        What it has not understood says nothing of that.
        """
        with contextlib.suppress(LinkLost, GuestTimeout, ProtocolError):
            self._await("", LAST_WORDS_S, Answer)

    def _send(self, data: bytes, deadline: float) -> None:
        with self._sending:
            if self._is_torn:
                raise LinkLost("an earlier request was cut off in the middle")
            self._is_torn = True  # should an exception come from wherever
            self.link.send(data, deadline)
            self._is_torn = False

    def _await(self, asked: str, timeout_s: float, kind: type[T]) -> T:
        """Wait for the answer to `asked`; late answers to earlier requests are passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            said = self._next(deadline)
            if isinstance(said, Stale):
                raise StaleGeneration(f"generation {said.seen} owns this sandbox")
            if isinstance(said, Declined) and said.id in {asked, ""}:
                raise _declined(said)
            if isinstance(said, kind) and said.id == asked:
                return said

    def _next(self, deadline: float) -> Frame:
        """The next frame; the payload of one that has any is in `_payload` then."""
        if self._pending is not None:
            return self._with_payload(self._pending, deadline)
        while True:
            line = self._next_line(deadline)
            self._received_frames += 1
            if self._received_frames > MAX_FRAMES:
                raise ProtocolError("the guest talks without end")
            if line.strip():
                break
        said = protocol.read(line)
        if not isinstance(said, Data):
            return said
        self._pending = said
        return self._with_payload(said, deadline)

    def _with_payload(self, data: Data, deadline: float) -> Data:
        """Read what follows a frame; one that is interrupted goes on with the next frame's turn."""
        while (payload := self._reader.payload(data.payload)) is None:
            self._receive(deadline)
        self._payload, self._pending = payload, None
        return data

    def _next_line(self, deadline: float) -> bytes:
        try:
            while (line := self._reader.line()) is None:
                self._receive(deadline)
        except Malformed as error:
            raise ProtocolError(f"the guest has sent what is no frame: {error}") from error
        return line

    def _receive(self, deadline: float) -> None:
        data = self.link.receive(deadline)
        self._received_bytes += len(data)
        if self._received_bytes > MAX_SAID:
            raise ProtocolError("the guest talks without end")
        self._reader.feed(data)


def _refusal(text: str) -> Execution | None:
    """What cannot even be sent is the code's fault, and told as such."""
    if "\0" in text:
        return _failed("SyntaxError", "the code holds a NUL character (\\x00); write it escaped")
    if len(text) * MOST_PER_CHARACTER <= MAX_TEXT:
        return None
    size = len(json.dumps(text))
    if size > MAX_TEXT:
        return _failed("CodeTooLong", f"{size} bytes; the limit is {MAX_TEXT}")
    return None


def _failed(kind: str, message: str) -> Execution:
    error = ErrorInfo(type=kind, message=message)
    return Execution(outcome=Outcome.ERROR, error=error, interpreter=Interpreter.KEPT)


def _of_this_version(hello: Hello) -> Hello:
    """A sandbox outlives its worker, and may outlive the worker's version."""
    if hello.version != VERSION:
        raise SandboxUnavailable(
            f"the sandbox speaks version {hello.version} of the protocol, this host {VERSION}"
        )
    return hello


def _declined(said: Declined) -> Exception:
    """The error for a request that the guest did not do."""
    if said.kind == "refused":
        return FileRefused(said.reason)
    if said.kind == "conflict":
        return SandboxUnavailable(f"the sandbox is at something else: {said.reason}")
    if said.kind == "fault":
        return SandboxUnavailable(f"the sandbox cannot do it: {said.reason}")
    return ProtocolError(f"the guest did not understand: {said.reason}")
