"""Newline-delimited JSON frames over a pair of descriptors that never block.

A frame is one JSON object with a string `kind`. Its size is checked before it is parsed: a line
that grows past `MAX_FRAME` is thrown away up to its end and reported as malformed. A frame with a
number `payload` is followed by so many bytes as they are: the contents of a file.
"""

from __future__ import annotations

import base64
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MAX_FRAME = 8 * 1024 * 1024
MAX_PAYLOAD = 4 * 1024 * 1024
MAX_QUEUE = 4 * MAX_FRAME
READ_SIZE = 256 * 1024

Frame = dict[str, "Any"]

_as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Malformed(Exception):
    """A line that is no frame; the text says what is wrong with it."""


def encode(frame: Frame) -> bytes:
    """Write a frame as one line of UTF-8; half of a surrogate pair becomes a question mark."""
    return _as_json(frame).encode("utf-8", "replace") + b"\n"


def decode(line: bytes) -> Frame:
    """Read one line; raises `Malformed`."""
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed("not JSON: " + str(error)[:200]) from None
    if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
        raise Malformed("not an object with a kind")
    return frame


class Reader:
    """Cuts a byte stream into lines and payloads, holding no more than one frame of it."""

    def __init__(self, max_line: int = MAX_FRAME) -> None:
        self._max_line = max_line
        self._data = bytearray()
        self._seen = 0  # of the data, without the end of a line in it
        self._skipping = False

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._data += data

    def line(self) -> bytes | None:
        """The next line, without its end; None while it is not there; raises `Malformed`."""
        end = self._data.find(b"\n", self._seen)
        if end < 0:
            self._seen = len(self._data)
            if self._seen > self._max_line:
                self._skipping = True
                self._drop(self._seen)
            return None
        line = bytes(self._data[:end])
        self._drop(end + 1)
        if self._skipping or len(line) > self._max_line:
            self._skipping = False
            raise Malformed(f"frame is over {self._max_line} bytes")
        return line

    def payload(self, size: int) -> bytes | None:
        """The `size` bytes that follow a frame; None while they are not all there."""
        if len(self._data) < size:
            return None
        payload = bytes(memoryview(self._data)[:size])
        self._drop(size)
        return payload

    def _drop(self, size: int) -> None:
        del self._data[:size]
        self._seen = 0


class Channel:
    """One peer: frames in, frames out, both without ever blocking.

    The payload of a frame becomes its `data`; `max_payload` is the longest that is taken.
    """

    def __init__(
        self, read_fd: int, write_fd: int, max_line: int = MAX_FRAME, max_payload: int = 0
    ) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._reader = Reader(max_line)
        self._max_payload = max_payload
        self._begun: Frame | None = None  # its payload is still to come
        self._out = bytearray()
        self.is_slow = False  # somebody waits until it takes more
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    @property
    def has_output(self) -> bool:
        """Whether bytes wait for the peer to take them."""
        return bool(self._out)

    def receive(
        self, on_frame: Callable[[Frame], None], on_malformed: Callable[[str], None]
    ) -> bool:
        """Read what is there; returns False when the peer is gone."""
        try:
            data = os.read(self.read_fd, READ_SIZE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._reader.feed(data)
        while True:
            try:
                frame = self._next()
            except Malformed as error:
                on_malformed(str(error))
                continue
            if frame is None:
                return bool(data)
            on_frame(frame)

    def _next(self) -> Frame | None:
        """The next frame, whole; raises `Malformed` for a line that is none."""
        frame, self._begun = self._begun or self._next_line(), None
        if frame is not None and "payload" in frame:
            size = int(number(frame, "payload", 0, self._max_payload))
            data = self._reader.payload(size)
            if data is None:
                self._begun, frame = frame, None
            else:
                frame["data"] = data
        return frame

    def _next_line(self) -> Frame | None:
        line = self._reader.line()
        while line is not None and not line.strip():
            line = self._reader.line()
        return None if line is None else decode(line)

    def send(self, frame: Frame, payload: bytes = b"") -> bool:
        """Queue a frame and write what goes; False when the peer is gone or takes nothing."""
        self._out += encode(frame)
        self._out += payload
        return self.flush() and len(self._out) <= MAX_QUEUE

    def flush(self) -> bool:
        """Write what the peer takes now; False when it is gone."""
        while self._out:
            try:
                written = os.write(self.write_fd, memoryview(self._out)[:READ_SIZE])
            except BlockingIOError:
                break
            except OSError:
                return False
            del self._out[:written]
        return True

    def close(self) -> None:
        """Close both descriptors."""
        for fd in {self.read_fd, self.write_fd}:
            os.close(fd)


def unpack(text: str) -> bytes:
    """Read bytes from a frame; raises `Malformed`."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Malformed("not base64: " + str(error)) from None


def text(frame: Frame, key: str, most: int) -> str:
    """A string of a frame, at most `most` characters; raises `Malformed`."""
    value = frame.get(key)
    if not isinstance(value, str) or len(value) > most:
        raise Malformed(f"{key} is not a text of at most {most} characters")
    return value


def number(frame: Frame, key: str, least: float, most: float) -> float:
    """A number of a frame within its bounds; raises `Malformed`."""
    value = frame.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Malformed(f"{key} is not a number")
    if not least <= value <= most:
        raise Malformed(f"{key} is not between {least} and {most}")
    return value


def texts(frame: Frame, key: str) -> list[str]:
    """A list of strings of a frame, empty when it is not there; raises `Malformed`."""
    value = frame.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Malformed(key + " is not a list of texts")
    return value
