"""Take what a job made out of its sandbox.

Nothing that comes out is trusted: names are made harmless, sizes and numbers are capped, and a file
that cannot be had is named and left behind.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from sandbox.base import Sandbox
from sandbox.errors import FileRefused, SandboxError, SandboxUnavailable
from sandbox.types import MIB, FileInfo
from worker.errors import StoreUnavailable
from worker.history import History
from worker.hooks import Run
from worker.messages import Artifact, ArtifactsAdded, Record, Status
from worker.store.blobs import Blobs

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_log = logging.getLogger(__name__)
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"\\|?*\u2028\u2029\u202a-\u202e\ud800-\udfff]')
_LONGEST = 120
_NAMED = 20  # files that are told by name
_ASKED_FOR = 500
_CANCELLED_S = 2.0
_CANCELLED_BYTES = 16 * MIB  # what takes about a second


class Caps(Record):
    """How much is taken out of the sandboxes of one job."""

    files: int = 100
    total_bytes: int = 256 * 1024 * 1024


class Keep(Protocol):
    """Takes what a job made out of its sandbox: `collect` with a shelf and caps."""

    def __call__(self, run: Run, sandbox: Sandbox, *, most_bytes: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the artefacts of one job are put, under their names.

    With `blobs` their content is kept there, and the file is a second name of it. Where it
    `is_private`, the folders that it is in are made for this user alone.
    """

    folder: Path
    blobs: Blobs | None = None
    is_private: bool = False

    def put(self, name: str, file: FileInfo, fill: Callable[[BinaryIO], int]) -> Artifact:
        """Make the file of this name, or put it in the place of an older one.

        `fill` writes its content. Raises `OSError` or `StoreUnavailable` when it cannot be kept.
        """
        target = self.folder / name
        if self.is_private:
            for above in (self.folder.parent.parent, self.folder.parent):
                above.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{secrets.token_hex(4)}.partial")
        try:
            size, sha256 = self._fill(partial, fill)
            partial.replace(target)
        finally:
            # Also after `replace`, which leaves both where they are two names of one file.
            partial.unlink(missing_ok=True)
        return Artifact(
            name=name,
            size=size,
            mime=file.mime,
            path=str(target.resolve()),
            source=file.name,
            sha256=sha256,
        )

    def drop(self, artifact: Artifact) -> None:
        """Remove a file, and the folders that are empty then; its content stays with the blobs."""
        target = self.folder / artifact.name
        with suppress(OSError):  # not there, or somebody has put files of their own there
            target.unlink()
            for folder in [*target.parents][: len(Path(artifact.name).parts)]:
                folder.rmdir()

    def _fill(self, partial: Path, fill: Callable[[BinaryIO], int]) -> tuple[int, str]:
        if self.blobs is None:
            with partial.open("wb") as sink:
                return fill(sink), ""
        with self.blobs.writer() as sink:
            fill(sink)
        _link(self.blobs.path(sink.blob.sha256, sink.blob.size), partial)
        return sink.blob.size, sink.blob.sha256


def _link(blob: Path, target: Path) -> None:
    try:
        os.link(blob, target)
    except OSError:  # another file system, one without links, or more links than it can count
        shutil.copyfile(blob, target)


def collect(
    run: Run, sandbox: Sandbox, shelf: Shelf, caps: Caps, *, most_bytes: int | None = None
) -> None:
    """Take the files that calls have reported since the last time, and add them to the history.

    At the end of a job, those that it has removed again count no more, and are artefacts no more.
    With `most_bytes` this is a checkpoint of a job that goes on: larger files, and those that
    cannot be had, are left for later without a word; one that is cancelled is not kept waiting;
    and all versions of files that are ever taken so are no more than the caps allow.

    After a job was cancelled, only what can be had within two seconds is taken.

    Raises `SandboxUnavailable`; what was taken until then is kept.
    """
    is_checkpoint = most_bytes is not None
    tell = _log.info if is_checkpoint else run.remark
    patience = _Patience(run, is_checkpoint=is_checkpoint)
    if not is_checkpoint:
        _leave_out_gone(run, sandbox, shelf)
    files = _offered(run.history, most_bytes)
    files, over = _within(files, run.job.artifacts, caps.files)
    if over:
        tell(f"{over} files more than {caps.files} were left behind")
    kept: list[Artifact] = []
    try:
        for file, name in zip(files, safe_names(files, run.job.artifacts), strict=True):
            if patience.is_over(file):
                tell(f"{file.name} was left behind: the job is cancelled")
                continue
            left = _bytes_left(run.history, kept, file, caps, is_checkpoint=is_checkpoint)
            try:
                kept.append(_take(sandbox, shelf, file, name, left))
            except SandboxUnavailable:
                raise
            except (SandboxError, StoreUnavailable, OSError) as error:
                tell(f"{file.name} was left behind: {error}")
    finally:
        if kept:
            run.append(ArtifactsAdded(artifacts=tuple(kept)))


def _leave_out_gone(run: Run, sandbox: Sandbox, shelf: Shelf) -> None:
    """Forget files that are not in the workspace any more.

    Of a job that had an earlier sandbox only those that were never taken: it may have left the
    others there.
    """
    history = run.history
    taken = {} if history.is_moved else history.latest
    gone = _gone(sandbox, [*taken, *(name for name in history.uncollected if name not in taken)])
    if not gone:
        return
    files = [artifact for name, artifact in taken.items() if name in gone]
    if history.is_moved:
        run.remark(f"not in the workspace any more: {_named([*gone])}")
    run.append(ArtifactsAdded(artifacts=(), gone=tuple(gone)))
    for artifact in files:
        shelf.drop(artifact)


def _gone(sandbox: Sandbox, names: Sequence[str]) -> dict[str, None]:
    """Those that are not there, in their order.

    A listing has no hidden files, and is cut when it is long or takes long: the first few hundred
    that it lacks are asked for one by one.
    """
    listed = {file.name for file in sandbox.files()} if names else set()
    lacking = [name for name in names if name not in listed]
    return dict.fromkeys(
        name
        for number, name in enumerate(lacking)
        if number >= _ASKED_FOR or not _is_there(sandbox, name)
    )


class _Found(Exception):
    """The first bytes of a file have come."""


class _Probe(io.BytesIO):
    def write(self, _data: ReadableBuffer, /) -> int:
        raise _Found


def _is_there(sandbox: Sandbox, name: str) -> bool:
    try:
        sandbox.read_file(name, _Probe())
    except _Found:
        return True
    except FileRefused:
        return False
    return True  # and empty


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


class _Patience:
    """Whether the next file may still be taken, now that somebody may wait for the end."""

    def __init__(self, run: Run, *, is_checkpoint: bool) -> None:
        self._run, self._is_checkpoint = run, is_checkpoint
        self._ends_at = time.monotonic() + _CANCELLED_S

    def is_over(self, file: FileInfo) -> bool:
        if self._is_checkpoint:
            return self._run.is_cancelled()
        is_late = time.monotonic() > self._ends_at or file.size > _CANCELLED_BYTES
        return is_late and self._run.job.status is Status.CANCELLED


def _offered(history: History, most_bytes: int | None) -> list[FileInfo]:
    files = history.uncollected.values()
    return [file for file in files if most_bytes is None or file.size <= most_bytes]


def _within(
    files: Sequence[FileInfo], artifacts: Sequence[Artifact], most: int
) -> tuple[list[FileInfo], int]:
    """As many files as there may be, and how many are over; a new version is no other file."""
    had = {artifact.source for artifact in artifacts}
    new = [file.name for file in files if file.name not in had]
    over = set(new[max(0, most - len(artifacts)) :])
    return [file for file in files if file.name not in over], len(over)


def _bytes_left(
    history: History, kept: Sequence[Artifact], file: FileInfo, caps: Caps, *, is_checkpoint: bool
) -> int:
    sizes = {a.source: a.size for a in (*history.job.artifacts, *kept) if a.source != file.name}
    left = caps.total_bytes - sum(sizes.values())
    if is_checkpoint:
        taken = history.collected_bytes + sum(artifact.size for artifact in kept)
        left = min(left, caps.total_bytes - taken)
    return max(0, left)


def _take(sandbox: Sandbox, shelf: Shelf, file: FileInfo, name: str, most_bytes: int) -> Artifact:
    most_bytes = min(most_bytes, sandbox.spec.limits.read_bytes)
    return shelf.put(
        name, file, lambda sink: sandbox.read_file(file.name, sink, max_bytes=most_bytes)
    )


def safe_names(files: Sequence[FileInfo], artifacts: Sequence[Artifact] = ()) -> Iterator[str]:
    """Relative paths for the files: none leaves the folder, none is there twice or hidden.

    A file that is one of the artefacts already, in an older version, keeps its name.
    """
    known = {artifact.source: artifact.name for artifact in artifacts}
    taken = _Names()
    for artifact in artifacts:
        taken.add(artifact.name)
    for file in files:
        parts = [_safe(part) for part in file.name.split("/") if part not in {"", ".", ".."}]
        yield known.get(file.name) or taken.add("/".join(parts[-8:]) or "file")


class _Names:
    """Paths of files in one folder, told apart as the least particular file system does."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, name: str) -> str:
        """Add this name, or one like it that can be beside those there are; returns it."""
        path = ""
        *folders, last = name.split("/")
        for folder in folders:
            path = _numbered(path + folder, self._files) + "/"
            self._folders.add(path[:-1].lower())
        path = _numbered(path + last, self._files | self._folders)
        self._files.add(path.lower())
        return path


def _numbered(path: str, taken: set[str]) -> str:
    folder, slash, last = path.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    number, name = 1, path
    while name.lower() in taken:
        number += 1
        last = f"{stem}-{number}{dot}{suffix}" if dot else f"{suffix}-{number}"
        name = folder + slash + last
    return name


def _safe(part: str) -> str:
    part = _UNSAFE.sub("_", part).lstrip(".- ").rstrip(". ")
    stem, dot, suffix = part.rpartition(".")
    if len(part.encode()) > _LONGEST:
        keep = part if not dot else stem
        part = keep.encode()[:_LONGEST].decode("utf-8", "ignore") + (dot + suffix[:16])
    return part or "file"
