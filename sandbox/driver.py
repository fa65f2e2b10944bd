"""What all drivers share: a `Sandbox` over a session, and what to do when the guest fails us."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from sandbox.errors import GuestTimeout, ProtocolError, SandboxLost
from sandbox.session import Session
from sandbox.types import Execution, FileInfo, SandboxSpec

SIGKILLED = 137
ENDING_S = 2.0  # an ending sandbox breaks its link a moment before anybody can ask how it ended


class GuestSandbox(ABC):
    """A sandbox with a guest in it; a driver says how it is thrown away and why it ended.

    A guest that breaks the protocol or does not answer is discarded at once: nobody knows what
    state it is in, and it may be hostile.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ended: str | None = None

    @property
    def spec(self) -> SandboxSpec:
        """What the sandbox was made from."""
        return self._session.spec

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
        """End the execution in flight."""
        if self._ended is None:
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

    def close(self) -> None:
        """Remove the sandbox and all that runs in it."""
        if self._ended is None:
            self._end("the sandbox is closed")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn a broken link into its reason, and discard a guest that cannot be trusted."""
        if self._ended is not None:
            raise SandboxLost(self._ended)
        try:
            yield
        except SandboxLost as error:
            reason = self._why_lost() or str(error)
            self._end(reason)
            raise SandboxLost(reason) from error
        except (ProtocolError, GuestTimeout) as error:
            self._end(f"the sandbox was discarded: {error}")
            raise

    def _end(self, reason: str) -> None:
        self._ended = reason
        self._session.close()
        self._discard()

    @abstractmethod
    def _discard(self) -> None:
        """Throw away the sandbox, whatever state it is in. Never raises."""

    @abstractmethod
    def _why_lost(self) -> str | None:
        """Say how the sandbox ended, if its driver can tell."""


def describe_end(exit_code: int, *, was_out_of_memory: bool, age_s: float, life_s: float) -> str:
    """Say in words how a sandbox's first process ended."""
    if age_s > life_s - 0.5:  # the guest counts from its own beginning, a moment later or earlier
        return f"the sandbox has reached its maximum life of {life_s:g} s"
    if was_out_of_memory:
        return "the sandbox ran out of memory and its first process was killed"
    if exit_code == SIGKILLED:
        return "the sandbox was killed: for its memory limit, or from outside (exit code 137)"
    return f"the sandbox ended by itself (exit code {exit_code})"


def wait_until(deadline: float, interval_s: float = 0.02) -> Iterator[None]:
    """Yield now and then until `deadline`, a `time.monotonic()` value."""
    while time.monotonic() < deadline:
        yield
        time.sleep(interval_s)
