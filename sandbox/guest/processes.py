"""The other processes of the sandbox: count them and kill them.

Killing goes by the process table, not by process group, so `setsid`, double forks and processes
that ignore SIGTERM are found. A process is named by pid *and* start time: pids are used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable

PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
MAX_ROUNDS = 25

_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """One process, known by its pid and its start, in clock ticks since boot.

    Its parent is that of one moment: it changes when a process becomes an orphan.
    """

    __slots__ = ("parent", "pid", "started")

    def __init__(self, pid: int, started: int, parent: int) -> None:
        self.pid = pid
        self.started = started
        self.parent = parent

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Process):
            return NotImplemented
        return (self.pid, self.started) == (other.pid, other.started)

    def __hash__(self) -> int:
        return hash((self.pid, self.started))


def set_dumpable(*, allowed: bool) -> None:
    """Open or close this process's memory and descriptors to others of the same user."""
    _libc.prctl(PR_SET_DUMPABLE, int(allowed), 0, 0, 0)


def set_name(name: str) -> None:
    """Name this process in `ps`."""
    _libc.prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def volunteer_for_oom() -> None:
    """Become the first that the kernel takes when memory runs out.

    Only a process that is dumpable owns its own files in /proc.
    """
    with contextlib.suppress(OSError):  # not writable under some runtimes
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, b"1000")
        finally:
            os.close(file)


def give_back_memory() -> None:
    """Return what is free in the heap to the kernel, where the C library has a way to."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, as PID 1 is anyway."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def inspect(pid: int) -> Process | None:
    """Read one process; None if it is gone, a zombie, or another user's."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            if os.fstat(stat.fileno()).st_uid not in (os.geteuid(), 0):
                return None
            # The name, in brackets, may hold anything: what follows its last bracket counts.
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X") and not _has_other_threads(pid):
        return None
    return Process(pid, int(fields[19]), int(fields[1]))


def _has_other_threads(pid: int) -> bool:
    """Whether a process goes on though its first thread has ended."""
    return count_threads(pid) > 1


def count_threads(pid: int) -> int:
    """How many threads a process has; libraries may have begun some. 0 if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def table() -> list[Process]:
    """All that lives below this process, itself left out.

    As PID 1 that is everything in the sandbox; elsewhere only this process's descendants.
    """
    own = os.getpid()
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []  # no descriptor to be had on this machine: nobody can be told apart now
    found = [p for p in map(inspect, pids) if p is not None and p.pid != own]
    return found if own == 1 else _descendants(own, found)


def _descendants(root: int, processes: Iterable[Process]) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [process.pid for process in below]
    return found


def interrupt(leader: int, spared: set[Process]) -> None:
    """Send SIGINT to a process, and to those of its group that are not spared."""
    for pid in [leader, *(process.pid for process in _others(spared))]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid == leader or os.getpgid(pid) == leader:
                os.kill(pid, signal.SIGINT)


def kill_others(spared: set[Process], timeout_s: float = 1.0) -> bool:
    """Kill all but `spared` and wait until they are gone; False if that does not come about.

    Everything is stopped before anything is killed: a fork bomb whose members are killed one by
    one fills each freed place at once, one whose members are stopped cannot.
    """
    deadline = time.monotonic() + timeout_s
    others = _others(spared)
    while others and time.monotonic() < deadline:
        _signal_all(_stopped(others, spared), signal.SIGKILL)
        time.sleep(0.001)
        others = _others(spared)
    return not others


def _stopped(others: list[Process], spared: set[Process]) -> list[Process]:
    """Stop `others`, and those that they have begun meanwhile, until there are no more."""
    seen: set[int] = set()
    for _ in range(MAX_ROUNDS):
        fresh = [process for process in others if process.pid not in seen]
        if not fresh:
            break
        _signal_all(fresh, signal.SIGSTOP)
        seen |= {process.pid for process in fresh}
        others = _others(spared)
    return others


def kill_everything() -> None:
    """Kill all processes but this one, in one system call where it is PID 1."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        kill_others(set())


def wait_for_children(spared: set[Process], timeout_s: float = 2.0) -> None:
    """Collect killed children; until then each still counts against the process limit."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        are_gone = not _others(spared)
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if are_gone:
                return
            time.sleep(0.005)


def _others(spared: set[Process]) -> list[Process]:
    return [process for process in table() if process not in spared]


def _signal_all(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        try:
            os.kill(process.pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or a link's relay, which is another user's
