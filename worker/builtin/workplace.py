"""Where the calls of a job run: its sandbox, and the one way to put another in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sandbox.base import Sandbox
from sandbox.errors import Detached
from sandbox.types import Execution
from worker.builtin.watch import Watch
from worker.tools import CallContext

_LEAST_S = 1.0  # a call that is begun gets this long, however little time the job has left


def nothing_lives(place: str) -> None:
    """Take over nothing: what a sandbox that ends with its host is good for."""
    del place


def nothing_made(sandbox: Sandbox) -> tuple[str, ...]:
    """Put nothing back: what a job is given that keeps its files in its sandbox alone."""
    del sandbox
    return ()


@dataclass
class Workplace:
    """A sandbox, taken over or started when it is first needed, and replaced when it was lost.

    `open_sandbox` starts one and puts the job's inputs into it; it may raise `SandboxError`.
    `adopt` takes over the one that is named, if it still lives. `restore` puts back what the job
    had made into one that was started, and returns the names; it may raise `SandboxUnavailable`.
    """

    open_sandbox: Callable[[], Sandbox]
    max_timeout_s: float = 300.0
    adopt: Callable[[str], Sandbox | None] = nothing_lives
    restore: Callable[[Sandbox], tuple[str, ...]] = nothing_made
    restored: tuple[str, ...] = field(default=(), init=False)
    _sandbox: Sandbox | None = None
    _watch: Watch = field(default_factory=Watch, init=False)

    def open(self, place: str = "") -> None:
        """Take over the sandbox `place`, or start one, before anything else is spent on the job."""
        if self.join(place):
            return
        sandbox = self.open_sandbox()
        try:
            self.restored = self.restore(sandbox)
        except BaseException:
            sandbox.close()
            raise
        self._sandbox = sandbox

    def join(self, place: str) -> bool:
        """Take over the sandbox `place`; False if it does not live any more."""
        if self._sandbox is None and place:
            self._sandbox = self.adopt(place)
        return self._sandbox is not None

    @property
    def sandbox(self) -> Sandbox:
        self.open()
        if self._sandbox is None:
            raise AssertionError("open() sets it or raises")
        return self._sandbox

    @property
    def is_open(self) -> bool:
        return self._sandbox is not None

    @property
    def place(self) -> str:
        """Names the sandbox in which calls run now; nobody in another has heard of them."""
        return self._sandbox.place if self._sandbox else ""

    def close(self) -> None:
        """Remove the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def detach(self) -> None:
        """Leave the sandbox as it is, for whoever takes it over."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.detach()

    def python(self, call: CallContext, code: str, timeout_s: float | None = None) -> Execution:
        with self._cancelling(call) as sandbox:
            limit_s = self._limit_s(call, timeout_s)
            return sandbox.python(code, timeout_s=limit_s, execution_id=call.execution_id)

    def shell(self, call: CallContext, command: str, timeout_s: float | None = None) -> Execution:
        with self._cancelling(call) as sandbox:
            limit_s = self._limit_s(call, timeout_s)
            return sandbox.shell(command, timeout_s=limit_s, execution_id=call.execution_id)

    def recall(self, call: CallContext) -> Execution | None:
        """What became of a call that an earlier host began; None: nobody knows."""
        return self.sandbox.recall(call.execution_id)

    def _limit_s(self, call: CallContext, asked_s: float | None) -> float:
        limit_s = self.sandbox.spec.limits.timeout_s if asked_s is None else asked_s
        return max(_LEAST_S, min(limit_s, self.max_timeout_s, call.time_left_s))

    @contextmanager
    def _cancelling(self, call: CallContext) -> Iterator[Sandbox]:
        """End what runs in the sandbox soon after the job is cancelled.

        When the job is not ours to work on any more, let go of the sandbox and say why.
        """
        sandbox = self.sandbox
        try:
            with self._watch.over(sandbox, call.is_cancelled):
                yield sandbox
        except Detached:
            call.is_cancelled()  # raises the reason
            raise
