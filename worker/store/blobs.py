"""Contents of files, each kept once under the SHA-256 of what it is.

A blob appears under its name whole or not at all: it is written beside it, brought to the disk,
and renamed. Several processes may keep the same content at once.

The last part of a disk is left to others: the database and the broker may lie on the same one,
and what jobs make must not stop them.

Not covered: nothing is ever forgotten here but what was left half written. Blobs are not writable,
but artefacts are links to them, so root who edits an artefact in place changes the blob as well.
That is noticed, and mended when the content is kept again, where its size is another by then.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sandbox.types import MIB
from worker.errors import BlobMissing, StoreUnavailable
from worker.messages import Record
from worker.sizes import said_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAME = re.compile(r"[0-9a-f]{64}")
_PARTIAL = ".partial-"
_CHUNK = 1024 * 1024
_DAY_S = 86_400.0
_LEAST_FREE = 64 * MIB  # a twentieth of the disk within these bounds, half of a tiny one
_MOST_FREE = 1024 * MIB


class Blob(Record):
    """What a content is called, and its size in bytes."""

    sha256: str
    size: int


class Sink(io.BufferedWriter):
    """Takes the content of a blob. Raises `StoreUnavailable` when it cannot be written."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"), _CHUNK)
        self._path = path
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: ReadableBuffer, /) -> int:
        self._check_room(memoryview(data).nbytes)
        self._digest.update(data)
        with _kept():
            written = super().write(data)
        self._size += written
        return written

    def _check_room(self, size: int) -> None:
        with _kept():
            reserve, free = _reserve(self._path.parent)
        if free - size < reserve:
            raise StoreUnavailable(
                f"a file cannot be kept: the disk of {self._path.parent} has {said_bytes(free)} "
                f"left, and {said_bytes(reserve)} are for the database"
            )

    @property
    def blob(self) -> Blob:
        """What was written so far."""
        return Blob(sha256=self._digest.hexdigest(), size=self._size)


class Blobs:
    """The contents in one folder, which is made when the first is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, source: BinaryIO) -> Blob:
        """Keep what `source` gives until its end. Raises `StoreUnavailable`."""
        with self.writer() as sink:
            shutil.copyfileobj(source, sink, _CHUNK)
        return sink.blob

    def path(self, sha256: str, size: int | None = None) -> Path:
        """Where a content lies. Raises `BlobMissing`, also for one that has not this size now."""
        path = self._place(sha256)
        if not path.is_file():
            raise BlobMissing(f"the content {sha256[:12]} is not in {self._folder}")
        check_size(path, size)
        return path

    @contextmanager
    def writer(self) -> Iterator[Sink]:
        """Give a file to write to; when the block ends well, what was written is a blob.

        Which one tells `Sink.blob`. Raises `StoreUnavailable`.
        """
        with _kept():
            for folder in (self._folder.parent, self._folder):  # for this user alone
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = self._folder / f"{_PARTIAL}{secrets.token_hex(8)}"
            sink = Sink(partial)
        try:
            try:
                yield sink
                with _kept():
                    sink.flush()
                    os.fsync(sink.fileno())
            finally:
                with _kept():
                    sink.close()
            self._name(partial, sink.blob)
        finally:
            partial.unlink(missing_ok=True)

    def tidy(self, older_than_s: float = _DAY_S) -> int:
        """Remove what processes that were killed have left half written; returns how many."""
        before, count = time.time() - older_than_s, 0
        for left in self._folder.glob(f"{_PARTIAL}*"):
            with suppress(FileNotFoundError):  # another worker tidies, too
                if left.stat().st_mtime < before:
                    left.unlink()
                    count += 1
        return count

    def _name(self, partial: Path, blob: Blob) -> None:
        """Let a whole content be found; one that is there already stays, unless it is damaged."""
        target = self._place(blob.sha256)
        with _kept():
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if not target.exists() or target.stat().st_size != blob.size:
                partial.chmod(0o444)
                partial.replace(target)

    def _place(self, sha256: str) -> Path:
        if not _NAME.fullmatch(sha256):  # it comes from a database, and becomes a path
            raise BlobMissing(f"{sha256[:80]!r} is no SHA-256")
        return self._folder / sha256[:2] / sha256


def check_size(path: Path, size: int | None) -> None:
    """Compare the size of a file with what was kept. Raises `BlobMissing` when they differ."""
    now = path.stat().st_size
    if size is not None and now != size:
        raise BlobMissing(f"{path} is damaged: it has {now:,} bytes and had {size:,}")


def _reserve(path: Path) -> tuple[int, int]:
    """How much of a disk is left free for others, and how much is free."""
    total, _used, free = shutil.disk_usage(path)
    return min(max(total // 20, _LEAST_FREE), _MOST_FREE, total // 2), free


@contextmanager
def _kept() -> Iterator[None]:
    """Within, a failure to write is a failure of the store."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        raise StoreUnavailable(f"a file cannot be kept: {why}{where}") from error
