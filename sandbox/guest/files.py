"""Files of the workspace: named relative to it, never through a link, regular files only."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILES = 10_000
MAX_REPORTED = 200
MAX_DEPTH = 32
MAX_LISTING = 2 * 1024 * 1024
ROW_BYTES = 32
MAX_SCAN_S = 0.5
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
REGULAR = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Snapshot = dict[str, tuple[int, int, int]]  # name -> size, mtime in ns, inode


class Refused(Exception):
    """The file cannot be had; the text says why."""


class Chunk:
    """A part of a file, and what the file was when it was read."""

    def __init__(self, data: bytes, status: os.stat_result) -> None:
        self.data = data
        self.size = status.st_size
        self.mtime_ns = status.st_mtime_ns


def split(name: str) -> list[str]:
    """Cut a relative name into its parts; raises `Refused` if it leaves the workspace."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused(f"not a name inside the workspace: {name[:200]!r}")
    return parts


def _open_folder(root: str, parts: list[str], *, make: bool) -> int:
    """Open the folder that `parts` name, following no link on the way."""
    fd = os.open(root, FOLDER)
    for part in parts:
        try:
            if make:
                _make_folder(part, fd)
            below = os.open(part, FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _make_folder(name: str, parent_fd: int) -> None:
    with contextlib.suppress(FileExistsError):  # opening it tells whether it is a folder
        os.mkdir(name, 0o755, dir_fd=parent_fd)


def create(root: str, name: str) -> int:
    """Create `name` for writing, its folders included, in place of a file that is there."""
    return _open(root, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, make=True)


def append(root: str, name: str) -> int:
    """Open the existing file `name` to write at its end."""
    return _open(root, name, os.O_WRONLY | os.O_APPEND, make=False)


def _open(root: str, name: str, flags: int, *, make: bool) -> int:
    *folders, last = split(name)
    try:
        folder = _open_folder(root, folders, make=make)
        try:
            fd = os.open(last, flags | REGULAR, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise Refused(f"{name[:200]}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused(f"{name[:200]}: not a regular file")
    return fd


def write(root: str, name: str, data: bytes, *, first: bool) -> int:
    """Write the first or a further part of a file; returns its size so far."""
    fd = create(root, name) if first else append(root, name)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        return os.fstat(fd).st_size
    except OSError as error:
        raise Refused(f"{name[:200]}: {error.strerror}") from None
    finally:
        os.close(fd)


def read(root: str, name: str, offset: int, size: int) -> Chunk:
    """Read one part of a regular file."""
    fd = _open(root, name, os.O_RDONLY, make=False)
    try:
        status = os.fstat(fd)
        return Chunk(os.pread(fd, size, offset), status)
    except OSError as error:
        raise Refused(f"{name[:200]}: {error.strerror}") from None
    finally:
        os.close(fd)


def snapshot(root: str) -> Snapshot:
    """Look at all files a person would call theirs: no hidden ones, caches or odd names.

    Bounded in number, depth and time, because the tree is made by untrusted code.
    """
    found: Snapshot = {}
    deadline = time.monotonic() + MAX_SCAN_S
    for entry, name in _walk(root, "", 0, deadline):
        if len(found) >= MAX_FILES:
            break
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # removed while we looked
        found[name] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def _walk(
    root: str, prefix: str, depth: int, deadline: float
) -> Iterator[tuple[os.DirEntry[str], str]]:
    try:
        listing = os.scandir(os.path.join(root, prefix))
    except OSError:
        return
    with listing:
        for entry in listing:
            if time.monotonic() > deadline:
                return
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    yield from _walk(root, name + "/", depth + 1, deadline)
            elif entry.is_file(follow_symlinks=False) and name.isprintable():
                yield entry, name


def changed(before: Snapshot, after: Snapshot) -> list[list[object]]:
    """List name and size of the files that are new or different, sorted, at most a few hundred."""
    names = sorted(name for name, seen in after.items() if before.get(name) != seen)
    return _fitting([name, after[name][0]] for name in names[:MAX_REPORTED])


def listing(root: str) -> list[list[object]]:
    """List name and size of all files, sorted, as many as fit into a frame."""
    return _fitting([name, seen[0]] for name, seen in sorted(snapshot(root).items()))


def _fitting(rows: Iterable[list[Any]]) -> list[list[object]]:
    found, size = [], 0
    for row in rows:
        size += len(row[0].encode()) + ROW_BYTES
        if size > MAX_LISTING:
            break
        found.append(row)
    return found
