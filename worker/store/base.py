"""The contract of a store: the truth about jobs, whichever process asks."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from worker.messages import Event, Job


@runtime_checkable
class Store(Protocol):
    """Keeps jobs and their events.

    Every method may raise `worker.errors.Infrastructure` when the store itself fails; nothing is
    half written then. Safe to use from several threads.
    """

    def create(self, job: Job) -> None:
        """Keep a new job. Raises `JobExists` if there is one of that id."""

    def load(self, job_id: str) -> tuple[Job, tuple[Event, ...]]:
        """Return the job as it was created and all its events, oldest first.

        Raises `JobUnknown`.
        """

    def claim(self, job_id: str) -> int:
        """Take the job over: returns a generation higher than all before it.

        From then on writes of lower generations are refused. Raises `JobUnknown`.
        """

    def append(self, job_id: str, event: Event, *, generation: int) -> None:
        """Add one event. It is kept for good when this returns, and not at all when this raises.

        Raises `LeaseLost` if a later claim was made than the one that gave `generation`, and
        `JobUnknown`.
        """
