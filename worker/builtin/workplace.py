"""Where the calls of a job run: its sandbox, and the one way to put another in its place."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from sandbox.base import Sandbox
from sandbox.errors import SandboxUnavailable
from sandbox.types import Execution
from worker.tools import CallContext

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_LEAST_S = 1.0  # a call that is begun gets this long, however little time the job has left


@dataclass
class Workplace:
    """A sandbox, started when it is first needed, and replaced when it was lost.

    `open_sandbox` starts one and puts the input files into it; it may raise `SandboxError`.
    """

    open_sandbox: Callable[[], Sandbox]
    max_timeout_s: float = 300.0
    place: str = field(default_factory=lambda: uuid4().hex[:12])
    _sandbox: Sandbox | None = None

    def open(self) -> None:
        """Start the sandbox now, before anything else is spent on the job."""
        if self._sandbox is None:
            self._sandbox = self.open_sandbox()

    @property
    def sandbox(self) -> Sandbox:
        self.open()
        if self._sandbox is None:
            raise AssertionError("open() sets it or raises")
        return self._sandbox

    @property
    def is_open(self) -> bool:
        return self._sandbox is not None

    def replace(self) -> None:
        """Take a new sandbox for one that was lost. Nobody there knows of the old calls."""
        self.close()
        self.place = uuid4().hex[:12]
        self._sandbox = self.open_sandbox()

    def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

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
        """End what runs in the sandbox soon after the job is cancelled."""
        sandbox, done = self.sandbox, threading.Event()

        def watch() -> None:
            # Again and again: a guest that has not been told of the call yet ends nothing.
            while not done.wait(_POLL_S):
                if call.is_cancelled() and not _cancel(sandbox):
                    return

        watcher = threading.Thread(target=watch, name="cancel", daemon=True)
        watcher.start()
        try:
            yield sandbox
        finally:
            done.set()
            watcher.join()


def _cancel(sandbox: Sandbox) -> bool:
    """Ask for the end of what runs; False when nobody is there to hear it."""
    try:
        sandbox.cancel()
    except SandboxUnavailable as error:  # the call itself meets it too, and says so
        _log.info("the cancel was not heard: %s", error)
        return False
    return True
