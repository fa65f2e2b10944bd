"""Who keeps a sandbox that belongs to no stored job: a process, told apart from all others.

An owner is written `host:pid:start`. The host is a machine since its last start *and* a pid
namespace, because containers have pids of their own and may share a hostname; the start tells a
process from a later one with the same pid. It is counted from the machine's start and not by the
clock, which can be set.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from functools import cache
from pathlib import Path

import psutil

_OWNER = re.compile(r"(?P<host>[^:]+):(?P<pid>\d{1,10}):(?P<start>[\d.]+)")


def owner() -> str:
    """Name this process for the label of its containers."""
    return f"{_host()}:{os.getpid()}:{_start(os.getpid())}"


def is_owner_alive(owner: str) -> bool | None:
    """Whether the process still runs; None if it is another host's, or cannot be told."""
    parts = _OWNER.fullmatch(owner)
    if parts is None or parts["host"] != _host():
        return None
    pid = int(parts["pid"])
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return False
        return _start(pid) == parts["start"]
    except psutil.NoSuchProcess:
        # Where /proc shows only one's own processes, others are there and cannot be seen.
        return None if psutil.pid_exists(pid) else False
    except (psutil.AccessDenied, OSError):
        return None


def _start(pid: int) -> str:
    """When a process began: in clock ticks since the machine's start, where that is known."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():  # not Linux, or gone
        return f"{psutil.Process(pid).create_time():.2f}"
    # The name in parentheses may hold anything; what follows it has fixed places.
    return stat.read_text(errors="replace").rpartition(")")[2].split()[19]


@cache
def _host() -> str:
    """This machine since its last start, and this pid namespace."""
    names = [socket.gethostname(), _read("/proc/sys/kernel/random/boot_id"), _pid_namespace()]
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:12]
    return f"{socket.gethostname().replace(':', '-')}-{digest}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
