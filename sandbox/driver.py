"""What all drivers share: a `Sandbox` over a session, and what to do when the guest fails us."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from sandbox.errors import (
    Detached,
    GuestTimeout,
    LinkLost,
    ProtocolError,
    SandboxLost,
    SandboxUnavailable,
    StaleGeneration,
)
from sandbox.session import Session
from sandbox.types import Execution, FileInfo, SandboxSpec

SIGKILLED = 137
ENDING_S = 2.0  # an ending sandbox breaks its link a moment before anybody can ask how it ended


@dataclass(frozen=True, slots=True)
class Over:
    """Why a sandbox cannot be used any more, and what a call in it raises."""

    kind: type[SandboxUnavailable]
    reason: str

    @property
    def is_final(self) -> bool:
        return self.kind is not LinkLost

    def error(self) -> SandboxUnavailable:
        return self.kind(self.reason)


class GuestSandbox(ABC):
    """A sandbox with a guest in it; a driver says how it is thrown away and why it ended.

    A guest that breaks the protocol or does not answer is discarded at once: nobody knows what
    state it is in, and it may be hostile.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._over: Over | None = None
        self._deciding = threading.RLock()  # a signal may come in the middle, and decide too
        self._busy = threading.Lock()

    @property
    def spec(self) -> SandboxSpec:
        """What the sandbox was made from."""
        return self._session.spec

    @property
    @abstractmethod
    def place(self) -> str:
        """Names this sandbox among all."""

    def python(
        self, code: str, *, timeout_s: float | None = None, execution_id: str | None = None
    ) -> Execution:
        """Run `code` in the job's interpreter; see `sandbox.base.Sandbox`."""
        return self._execute("python", code, timeout_s, execution_id)

    def shell(
        self, command: str, *, timeout_s: float | None = None, execution_id: str | None = None
    ) -> Execution:
        """Run `command` with a fresh shell; see `sandbox.base.Sandbox`."""
        return self._execute("shell", command, timeout_s, execution_id)

    def _execute(
        self, kind: str, text: str, timeout_s: float | None, execution_id: str | None
    ) -> Execution:
        limit_s = self.spec.limits.timeout_s if timeout_s is None else timeout_s
        with self._guarded():
            return self._session.execute(kind, text, limit_s, execution_id)

    def recall(self, execution_id: str) -> Execution | None:
        """Take the result of an execution that an earlier host began."""
        with self._guarded():
            return self._session.recall(execution_id)

    def cancel(self) -> None:
        """End the execution in flight; nothing is in flight in a sandbox that is gone."""
        over = self._over
        if over is not None and over.kind is SandboxLost:
            return
        if over is not None:
            raise over.error()
        self._session.cancel()

    def write_file(self, name: str, source: BinaryIO) -> int:
        """Write `source` to the file `name` in the workspace."""
        with self._guarded():
            return self._session.write_file(name, source)

    def read_file(self, name: str, target: BinaryIO, *, max_bytes: int | None = None) -> int:
        """Copy the regular file `name` of the workspace into `target`."""
        with self._guarded():
            return self._session.read_file(name, target, max_bytes=max_bytes)

    def files(self) -> tuple[FileInfo, ...]:
        """List the regular files of the workspace."""
        with self._guarded():
            return self._session.files()

    def detach(self) -> None:
        """Let go of the sandbox without ending it; see `sandbox.base.Sandbox`."""
        if self._conclude(Over(Detached, "this host has let go of the sandbox")):
            self._session.hang_up()
            self._tidy()

    def close(self) -> None:
        """Remove the sandbox and all that runs in it."""
        if self._conclude(Over(SandboxLost, "the sandbox is closed")):
            self._session.hang_up()
            self._discard()
            self._tidy()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn a broken link into its reason, and discard a guest that cannot be trusted."""
        try:
            with self._busy:
                if self._over is not None:
                    raise self._over.error()
                try:
                    yield
                except SandboxUnavailable as error:
                    raise self._judge(error) from error
        finally:
            self._tidy()

    def _judge(self, error: SandboxUnavailable) -> SandboxUnavailable:
        """Settle what an error means for the sandbox; returns what the caller is to be told."""
        if isinstance(error, LinkLost) and self._over is None:
            error = self._explain(error)
        if isinstance(error, SandboxLost | LinkLost | StaleGeneration):
            over = Over(type(error), str(error))
        elif isinstance(error, ProtocolError | GuestTimeout):
            over = Over(SandboxLost, f"the sandbox was discarded: {error}")
        else:
            return error
        if not self._conclude(over):  # another thread has closed it, or let go of it
            return self._over.error() if self._over else error
        self._session.hang_up()
        if over.kind is SandboxLost:
            self._discard()
        return error

    def _explain(self, error: LinkLost) -> SandboxUnavailable:
        """Tell a broken link from a sandbox that has ended."""
        try:
            reason = self._how_ended()
        except SandboxUnavailable as failure:
            return LinkLost(f"{error}; {failure}")
        return SandboxLost(reason) if reason else LinkLost(f"{error}; the sandbox runs on")

    def _conclude(self, over: Over) -> bool:
        """Make this the end, unless there was another; a broken link is not the end."""
        with self._deciding:
            if self._over is not None and self._over.is_final:
                return False
            self._over = over
            return True

    def _tidy(self) -> None:
        """Free what the host holds, once the sandbox is over and no call in it is in flight."""
        is_over = self._over is not None and self._over.is_final
        if is_over and self._busy.acquire(blocking=False):  # else the call in flight does it
            try:
                self._session.close()
                self._release()
            finally:
                self._busy.release()

    @abstractmethod
    def _discard(self) -> None:
        """Throw away the sandbox, whatever state it is in. Never raises."""

    @abstractmethod
    def _release(self) -> None:
        """Free what the driver holds on this host. Never raises; may be called twice."""

    @abstractmethod
    def _how_ended(self) -> str | None:
        """Say how the sandbox ended; None if it runs on.

        Raises `SandboxUnavailable` if nobody can be asked.
        """


def describe_end(exit_code: int, *, was_out_of_memory: bool, age_s: float, life_s: float) -> str:
    """Say in words how a sandbox's first process ended."""
    if was_out_of_memory:
        return "the sandbox ran out of memory and its first process was killed"
    if exit_code == SIGKILLED:
        return "the sandbox was killed: for its memory limit, or from outside (exit code 137)"
    # The guest counts from its own beginning, a moment later or earlier. One that has waited for
    # its job is older than the job is.
    if exit_code == 0 and age_s > life_s - 0.5:
        return f"the sandbox has reached its maximum life of {life_s:g} s"
    return f"the sandbox ended by itself (exit code {exit_code})"


def wait_until(deadline: float, interval_s: float = 0.02) -> Iterator[None]:
    """Yield now and then until `deadline`, a `time.monotonic()` value."""
    while time.monotonic() < deadline:
        yield
        time.sleep(interval_s)
