"""The contract of a sandbox: what each method returns, raises and cuts, and who is to blame."""

from __future__ import annotations

from typing import BinaryIO, Protocol, runtime_checkable

from sandbox.types import Execution, FileInfo, SandboxSpec


@runtime_checkable
class Sandbox(Protocol):
    """One isolated place in which the calls of one job run, one at a time.

    Every method may raise `SandboxUnavailable` (infrastructure; the call may or may not have
    run), and of its kinds above all `SandboxLost` (it is gone, with all that was in it),
    `LinkLost` (it may run on: adopt it or `close` it), `ProtocolError` (the guest misbehaves),
    `StaleGeneration` (another host owns it) and `Detached` (see `detach`).
    None of them is ever raised for what user code did: that is the returned `Execution`.
    """

    @property
    def spec(self) -> SandboxSpec:
        """What the sandbox was made from."""

    @property
    def place(self) -> str:
        """Names this sandbox among all; calls begun in another are unknown here."""

    def python(
        self, code: str, *, timeout_s: float | None = None, execution_id: str | None = None
    ) -> Execution:
        """Run `code` in the job's one interpreter, which keeps its variables between calls.

        The same `execution_id` never runs twice: its stored result is returned, or the call in
        flight is waited for. Ends within `timeout_s` (default: the limits') plus a grace of
        about two seconds, by SIGINT first and by a new interpreter if that does not help; the
        result says which. Output beyond the limits' `output_bytes` loses its middle.
        """

    def shell(
        self, command: str, *, timeout_s: float | None = None, execution_id: str | None = None
    ) -> Execution:
        """Run `command` with a fresh bash in the workspace; same rules as `python`.

        Returns when the foreground command ends, also when background children hold its output.
        """

    def recall(self, execution_id: str) -> Execution | None:
        """Take the result of an execution that an earlier host began; wait for it if it runs.

        Returns None when the sandbox has never heard of it.
        """

    def cancel(self) -> None:
        """End the execution in flight (from another thread); its result says `killed`."""

    def write_file(self, name: str, source: BinaryIO) -> int:
        """Write `source` to the file `name` in the workspace; returns its size in bytes.

        Raises `FileRefused` if the name leaves the workspace or the space is not there.
        """

    def read_file(self, name: str, target: BinaryIO, *, max_bytes: int | None = None) -> int:
        """Copy the regular file `name` of the workspace into `target`; returns its size in bytes.

        Raises `FileRefused` if it is missing, a link, not a regular file or over the limit.
        Nothing is written to `target` for a file that is refused for its size.
        """

    def files(self) -> tuple[FileInfo, ...]:
        """List the regular files of the workspace (at most 10,000), sorted by name."""

    def detach(self) -> None:
        """Let go of the sandbox without ending it; for another host to adopt.

        May be called from another thread: the call in flight raises `Detached` at once, and goes
        on in the sandbox. Later calls raise `Detached` too, and `close` does nothing then. Where
        a sandbox cannot outlive its host (the process driver), it ends. Safe to call twice; never
        raises. A sandbox that nobody adopts within its spec's `linger_s` ends by itself.
        """

    def close(self) -> None:
        """Remove the sandbox and all that runs in it. Safe to call twice; never raises.

        Also after `LinkLost`. What a host of a higher generation owns by now is left alone.
        """
