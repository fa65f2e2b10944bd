"""What a process prints: counted as it comes, head and tail kept, the full text in a file."""

from __future__ import annotations

import base64
import os

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_SIZE = 256 * 1024
DRAIN_BYTES = 4 * 1024 * 1024
OUTPUT_FOLDER = ".output"


class Bounded:
    """Keeps at most `limit` bytes of a stream: its head and its tail."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self.total = 0
        self.head = bytearray()
        self.tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take more of the stream; memory stays within twice the limit plus `data`."""
        self.total += len(data)
        room = self._half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data[-self._half :]
        if len(self.tail) > 2 * self._half:
            del self.tail[: -self._half]

    def _last(self) -> bytes:
        return bytes(self.tail[-self._half :])

    def frame(self) -> dict[str, Any]:
        """Write it for the wire."""
        return {
            "head": base64.b64encode(self.head).decode(),
            "tail": base64.b64encode(self._last()).decode(),
            "bytes": self.total,
        }


class Capture:
    """Reads one pipe, whoever writes to it, for as long as anyone holds its other end."""

    def __init__(self, workspace: str, limit: int, spill_limit: int) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._workspace = workspace
        self._limit = limit
        self._spill_limit = spill_limit
        self._spill: int | None = None
        self.has_ended = False

    def begin(self, number: int) -> None:
        """Count what comes from now on as the output of call `number`."""
        self.end()
        self.kept = Bounded(self._limit)
        self.file: str | None = None
        self._name = f"{OUTPUT_FOLDER}/{number}.txt"
        self.spilled = 0
        self._may_spill = self._spill_limit > 0

    def end(self) -> None:
        """Close the file of the full text."""
        if self._spill is not None:
            os.close(self._spill)
            self._spill = None

    def retire(self) -> None:
        """From now on only count: its call is over, and open files are few."""
        self.end()
        self._may_spill = False

    def read(self) -> int:
        """Take what is there; returns its size, 0 at the end of the stream, -1 for nothing yet."""
        if self.has_ended:
            return 0
        try:
            data = os.read(self.read_fd, READ_SIZE)
        except BlockingIOError:
            return -1
        self.has_ended = not data
        self._spill_over(data)
        self.kept.add(data)
        return len(data)

    def drain(self) -> None:
        """Take what was written up to now, and no more than a writer in the background can add."""
        taken = 0
        while taken < DRAIN_BYTES:
            size = self.read()
            if size <= 0:
                break
            taken += size

    def _spill_over(self, data: bytes) -> None:
        """Write the full text to a file once it is more than will be kept."""
        if self.kept.total + len(data) <= self._limit or not self._may_spill:
            return
        if self.file is None:
            self._open_spill()
        self._write(data)

    def _open_spill(self) -> None:
        try:
            self._spill = files.create(self._workspace, self._name)
        except (OSError, files.Refused):  # no space, or user code has put something in its place
            self._may_spill = False
            return
        self.file = self._name
        self._write(bytes(self.kept.head + self.kept.tail))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)[: max(0, self._spill_limit - self.spilled)]
        try:
            while view and self._spill is not None:
                written = os.write(self._spill, view)
                view = view[written:]
                self.spilled += written
        except OSError:  # the workspace is full; what is there is the beginning, and stays
            self._may_spill = False
            self.end()

    def close_writer(self) -> None:
        """Close our copy of the end that others write to."""
        os.close(self.write_fd)

    def close(self) -> None:
        """Close the reading end and the file."""
        self.end()
        self.has_ended = True
        os.close(self.read_fd)
