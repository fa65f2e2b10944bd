"""One execution while it runs: its limits, what it began with, and how it ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from enum import Enum

from . import processes
from .capture import Capture
from .memory import Counters
from .processes import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIB = 1024 * 1024
GRACE_S = 1.0


class Stage(Enum):
    """How far the ending of a call has come."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"  # SIGINT was sent; the grace runs
    KILLED = "killed"  # SIGKILL was sent; its end is only a matter of time


class Exit:
    """How a process ended: with a code, or by a signal."""

    def __init__(self, code: int | None, by_signal: int, cpu_s: float) -> None:
        self.code = code
        self.signal = by_signal
        self.cpu_s = cpu_s


class Call:
    """The execution in flight."""

    pid: int
    capture: Capture
    spared: set[Process]

    def __init__(
        self, kind: str, execution_id: str, number: int, timeout_s: float, counters: Counters
    ) -> None:
        self.kind = kind
        self.id = execution_id
        self.number = number
        self.timeout_s = timeout_s
        self.stage = Stage.RUNNING
        self.reason: str | None = None  # the outcome that we, not the code, brought about
        self.limits_met: list[str] = []
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self._counters = counters
        self._kills = counters.oom_kills()
        self._refusals = counters.pid_refusals()
        self._highest_before = counters.peak()
        self._sampled = counters.current()

    def attach(self, pid: int, capture: Capture, spared: Iterable[Process]) -> None:
        """Name what runs the call, where its output is read, and who was there before it."""
        self.pid, self.capture, self.spared = pid, capture, set(spared)

    def sample(self) -> None:
        """Look at the memory in use; for kernels whose own high mark is that of an earlier call."""
        self._sampled = max(self._sampled, self._counters.current())

    def peak(self) -> int:
        """Highest memory in use during the call, as far as the kernel or the samples tell."""
        highest = self._counters.peak()
        self.sample()
        return highest if highest > self._highest_before else self._sampled

    def was_out_of_memory(self) -> bool:
        """Whether the kernel has killed something for memory since the call began."""
        return self._counters.oom_kills() > self._kills

    def was_refused_a_process(self) -> bool:
        """Whether a fork has met the process limit since the call began."""
        return self._counters.pid_refusals() > self._refusals

    def interrupt(self, outcome: str, *limits: str) -> None:
        """Ask the call to end; the outcome, and the limit met, are settled by the first to ask."""
        if self.stage is Stage.RUNNING:
            self.stage, self.reason = Stage.INTERRUPTED, outcome
            self.limits_met += limits
            self.deadline = time.monotonic() + GRACE_S
            processes.interrupt(self.pid, self.spared)


def read_exit(status: int, usage: Any) -> Exit:
    """Turn what `os.wait4` returns into an `Exit`."""
    cpu_s = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return Exit(None, os.WTERMSIG(status), cpu_s)
    return Exit(os.WEXITSTATUS(status), 0, cpu_s)


def outcome_of(call: Call, came: dict[str, Any]) -> tuple[str, int | None]:
    """Name how a call ended, and its exit code if it has one."""
    end: Exit | None = came.get("exit")
    exit_code = came.get("exited") if end is None else end.code
    if end is not None and end.signal:
        exit_code = 128 + end.signal  # as a shell says it
    if call.reason is not None:
        return call.reason, exit_code
    if call.was_out_of_memory():
        return "oom", exit_code
    if end is not None and end.signal:
        return "killed", exit_code
    if call.kind == "shell":
        return ("error" if exit_code else "ok"), exit_code
    if exit_code is not None:
        return "exited", exit_code
    return ("error" if came.get("error") else "ok"), None


def why_it_ended(
    call: Call, came: dict[str, Any], outcome: str, limits_met: list[str]
) -> dict[str, Any] | None:
    """The error of a result: what the code raised, or what ended its process."""
    error, end = came.get("error"), came.get("exit")
    where = error or {"line": None, "source": None, "frames": [], "facts": {}}
    if outcome in NAMES:
        # The code saw a KeyboardInterrupt or SIGKILL; what matters is who sent it, and why.
        peak = f" (at most {call.peak() / MIB:.0f} MiB were in use)"
        message = "; ".join(limits_met) + (peak if outcome == "oom" else "")
        return {**where, "type": NAMES[outcome], "message": message}
    if call.reason is not None:
        return {**where, "type": "Cancelled", "message": "the call was cancelled"}
    if end is None or not end.signal:
        return error
    name = signal_name(end.signal)
    message = f"the process was ended by {name} (signal {end.signal})"
    return {**where, "type": name, "message": message}


def signal_name(number: int) -> str:
    """Name a signal; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


NAMES = {"timeout": "TimeLimit", "output_limit": "OutputLimit", "oom": "MemoryLimit"}
