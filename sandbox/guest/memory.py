"""Figures of the whole sandbox, from its cgroup (v1 or v2).

Where the cgroup is not the sandbox's own (the process driver) every figure is 0.
"""

from __future__ import annotations

import os

ROOT = "/sys/fs/cgroup"
V2 = ("memory.current", "memory.peak", "memory.events", "pids.events", "pids.current")
V1 = (
    "memory/memory.usage_in_bytes",
    "memory/memory.max_usage_in_bytes",
    "memory/memory.oom_control",
    "pids/pids.events",
    "pids/pids.current",
)


class Counters:
    """Opens the cgroup's files once; each reading is one system call."""

    def __init__(self, *, own_cgroup: bool, root: str = ROOT) -> None:
        names = V2 if os.path.exists(os.path.join(root, V2[0])) else V1
        paths = [os.path.join(root, name) for name in names] if own_cgroup else [""] * 5
        self._current, self._peak, self._events, self._pids, self._tasks = map(_open, paths)

    def current(self) -> int:
        """Bytes in use now, files of the workspace included."""
        return _number(_read(self._current))

    def peak(self) -> int:
        """Highest use since the sandbox began; 0 where the kernel does not tell."""
        return _number(_read(self._peak))

    def oom_kills(self) -> int:
        """How many processes the kernel has killed for the memory limit."""
        return _field(_read(self._events), b"oom_kill")

    def pid_refusals(self) -> int:
        """How many forks the process limit has refused."""
        return _field(_read(self._pids), b"max")

    def tasks(self) -> int:
        """How many processes and threads there are, those included that nobody has collected."""
        return _number(_read(self._tasks))


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY) if path else None
    except OSError:
        return None


def _read(fd: int | None) -> bytes:
    try:
        return os.pread(fd, 4096, 0) if fd is not None else b""
    except OSError:
        return b""


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() else 0


def _field(text: bytes, name: bytes) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return _number(value)
    return 0
