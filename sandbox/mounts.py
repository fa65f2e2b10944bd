"""Decide which paths of the host may be shown to a sandbox, read-only.

This guards against mistakes of the person who types `--mount`, who is trusted: a path that would
hand over the engine (its socket, its data), the kernel's file systems, the machine's own
configuration, or this product's records. It is asked once, before the start; it does not follow
what happens to the path afterwards. Below the path at most `MAX_ENTRIES` entries are looked at,
the upper ones first. Links that lead out of a mount lead nowhere inside, and file systems that
are mounted below it are not shown (`sandbox.hardening` mounts without them).

An engine with another data folder or socket than the usual ones: name them in `forbidden`.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from sandbox.errors import SpecInvalid
from sandbox.hardening import MOUNT_ROOT
from sandbox.transcript import clean
from sandbox.types import Mount

MAX_ENTRIES = 20_000
MAX_NAME_CHARS = 80

_COPY = "give the files that are needed with --file"
_ELSEWHERE = "mount a folder that holds the data and nothing else"

# Where these begin and below; a path that contains one of them is refused with it.
_REFUSED = {
    "/proc": "the kernel's own files",
    "/sys": "the kernel's own files",
    "/dev": "devices",
    "/run": "sockets of the system, the engine's among them",
    "/var/run": "sockets of the system, the engine's among them",
    "/boot": "what the machine starts from",
    "/etc": "the machine's configuration and keys",
    "/var/lib/docker": "the engine's data",
    "/var/lib/containerd": "the engine's data",
    "/var/lib/containers": "an engine's data",
    "/var/lib/kubelet": "an engine's data",
}
_SPECIAL = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_mounts(
    paths: Iterable[str | Path], *, forbidden: Sequence[Path] = ()
) -> tuple[Mount, ...]:
    """Return a mount below /mnt for each of `paths`; a path named twice is mounted once.

    Args:
        paths: Files or folders of this machine.
        forbidden: Paths of ours (data folder, engine's socket …) that must not be reachable.

    Raises:
        SpecInvalid: A path is missing or must not be shown; the text names it and the remedy.
    """
    sources = list(dict.fromkeys(_checked(Path(path), forbidden) for path in paths))
    pairs = zip(sources, _targets(sources), strict=True)
    return tuple(Mount(source=source, target=target) for source, target in pairs)


def _checked(path: Path, forbidden: Sequence[Path]) -> Path:
    """Return the real path; everything is asked of it, whatever links led there."""
    source = _real(path)
    if any("\ud800" <= char <= "\udfff" for char in str(source)):
        raise SpecInvalid(f"{_shown(path)}: cannot be mounted, its name is not UTF-8: rename it")
    for place, what in _places(forbidden):
        if source.is_relative_to(place):
            raise _refusal(path, source, f"lies in {place} ({what})", _COPY)
        if place.is_relative_to(source):
            raise _refusal(path, source, f"contains {place} ({what})", _ELSEWHERE)
    status = source.stat()
    special = _SPECIAL.get(stat.S_IFMT(status.st_mode))
    if special is not None:
        raise _refusal(path, source, f"is {special}", _COPY)
    if not _is_readable(status):
        raise SpecInvalid(
            f"{_shown(path)}: the sandbox's user may not read it: chmod o+rX, or " + _COPY
        )
    for entry, kind in _special_entries(source):
        raise _refusal(path, source, f"contains {kind} ({entry})", _ELSEWHERE)
    return source


def _real(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except FileNotFoundError:
        reason = "there is no such file or folder"
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL …
        reason = getattr(error, "strerror", None) or str(error)
    raise SpecInvalid(f"{_shown(path)}: cannot be mounted: {reason}: check the path")


def _places(forbidden: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for place, what in _REFUSED.items():
        yield Path(place), what
        yield Path(place).resolve(), what
    for own in forbidden:
        yield own.resolve(), "data that no sandbox may see"


def _refusal(path: Path, source: Path, what: str, remedy: str) -> SpecInvalid:
    real = f" (which is {_shown(source)})" if source != path.absolute() else ""
    return SpecInvalid(f"{_shown(path)}{real}: cannot be mounted, it {_one_line(what)}: {remedy}")


def _is_readable(status: os.stat_result) -> bool:
    """Tell whether the unprivileged user inside can open it (access lists are not asked)."""
    needed = 0o5 if stat.S_ISDIR(status.st_mode) else 0o4
    return status.st_mode & needed == needed  # it is nobody's owner and in nobody's group


def _special_entries(source: Path) -> Iterator[tuple[str, str]]:
    """Find what a read-only mount leaves open: connecting to sockets, talking through pipes."""
    folders = deque([str(source)] if source.is_dir() else [])
    seen = 0
    while folders and seen < MAX_ENTRIES:
        for entry in _entries(folders.popleft()):
            seen += 1
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                yield entry.path, _SPECIAL.get(kind, "a special file")
            if seen >= MAX_ENTRIES:
                break


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except (PermissionError, FileNotFoundError):
        # What we may not list, or what has just gone, the user inside cannot see either.
        return


def _targets(sources: Iterable[Path]) -> Iterator[PurePosixPath]:
    taken: set[str] = set()
    for source in sources:
        name = _name(source)
        stem, suffix = posixpath.splitext(name)
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}{suffix}"
        taken.add(name.lower())
        yield PurePosixPath(MOUNT_ROOT, name)


def _name(source: Path) -> str:
    """Make a name that needs no quotes, and is no hidden file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", source.name).lstrip("._-")
    return name[:MAX_NAME_CHARS] or "data"


def _shown(path: Path) -> str:
    return _one_line(str(path))


def _one_line(text: str) -> str:
    return clean(text, 500).replace("\n", "\\n")
