"""Newline-delimited JSON frames over a pair of descriptors that never block.

A frame is one JSON object with a string `kind`. Its size is checked before it is parsed: a line
that grows past `MAX_FRAME` is thrown away up to its end and reported as malformed.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any, Callable

VERSION = 1  # of the protocol; raised with every change that an older peer would not take
MAX_FRAME = 8 * 1024 * 1024
MAX_QUEUE = 4 * MAX_FRAME
READ_SIZE = 256 * 1024

Frame = dict[str, Any]


class Malformed(Exception):
    """A line that is no frame; the text says what is wrong with it."""


def encode(frame: Frame) -> bytes:
    """Write a frame as one line of UTF-8; half of a surrogate pair becomes a question mark."""
    text = json.dumps(frame, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"


def decode(line: bytes) -> Frame:
    """Read one line; raises `Malformed`."""
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed("not JSON: " + str(error)[:200]) from None
    if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
        raise Malformed("not an object with a kind")
    return frame


class Lines:
    """Cuts a byte stream into lines, holding no more than one frame of it."""

    def __init__(self, max_line: int = MAX_FRAME) -> None:
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that `data` completes; None stands for one that was too long."""
        found: list[bytes | None] = []
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._keep(piece)
            found.append(None if self._skipping else b"".join(self._parts))
            self._parts, self._size, self._skipping = [], 0, False
        self._keep(rest)
        return found

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max_line:
            self._skipping, self._parts = True, []
        if piece and not self._skipping:
            self._parts.append(piece)


class Channel:
    """One peer: frames in, frames out, both without ever blocking."""

    def __init__(self, read_fd: int, write_fd: int, max_line: int = MAX_FRAME) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._lines = Lines(max_line)
        self._out = bytearray()
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
        for line in self._lines.feed(data):
            self._deliver(line, on_frame, on_malformed)
        return bool(data)

    @staticmethod
    def _deliver(
        line: bytes | None,
        on_frame: Callable[[Frame], None],
        on_malformed: Callable[[str], None],
    ) -> None:
        if line is None:
            on_malformed(f"frame is over {MAX_FRAME} bytes")
        elif line.strip():
            try:
                frame = decode(line)
            except Malformed as error:
                on_malformed(str(error))
            else:
                on_frame(frame)

    def send(self, frame: Frame) -> bool:
        """Queue a frame and write what goes; False when the peer is gone or takes nothing."""
        self._out += encode(frame)
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


def pack(data: bytes) -> str:
    """Write bytes for a frame."""
    return base64.b64encode(data).decode("ascii")


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
