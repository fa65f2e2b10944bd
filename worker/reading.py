"""Read a file that somebody named, without ever waiting for what may never come.

A name may lead to a pipe, a device, or one of the kernel's own files, which look like plain ones
of no size and may have no end.
"""

from __future__ import annotations

import io
import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from worker.errors import InputInvalid

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KERNELS = (Path("/proc"), Path("/sys"))


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file; it gives one byte more than it had then, at most, if it has grown.

    Raises `InputInvalid` for anything else, also later, where it would have to be waited for, and
    `OSError`.
    """
    _check(path, path.stat())  # before: to open a device may do something
    # Without O_NONBLOCK, opening a pipe that has just come there waits for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    plain = _Plain(path, fd)
    try:
        _check(path, plain.status)
    except InputInvalid:
        plain.close()
        raise
    return io.BufferedReader(plain)


def _check(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputInvalid(f"{path} is a folder; name its files, or use --mount")
    if not stat.S_ISREG(status.st_mode):
        raise InputInvalid(f"{path} is not a regular file")
    if status.st_dev in _kernels():
        raise InputInvalid(f"{path} is one of the kernel's own files; give a copy")


@cache
def _kernels() -> frozenset[int]:
    """The file systems that hold no files of anybody."""
    return frozenset(path.stat().st_dev for path in _KERNELS if path.is_mount())


class _Plain(io.RawIOBase):
    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd
        self.status = os.fstat(fd)
        self._left = self.status.st_size + 1

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            count = os.readv(self._fd, [memoryview(buffer)[: self._left]])
        except BlockingIOError:
            raise InputInvalid(f"{self._path} has nothing to read yet; give a copy") from None
        self._left -= count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()
