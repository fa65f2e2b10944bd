"""The contract of a store: the truth about jobs, whichever process asks.

A job is claimed with a lease: for so long nobody else can claim it. Each claim has a generation
higher than all before it, and every write carries the generation of its claim, so that whoever
lost a job cannot write to it. All times are the store's own clock, in seconds since 1970: the
clocks of workers need not agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pydantic import Field

from sandbox.types import Standing
from worker.messages import (
    Ended,
    Event,
    Job,
    Order,
    Record,
    ReplyAdded,
    ResultAdded,
    ResultStatus,
    Status,
    Wire,
)


class WorkerSeen(Record):
    """A worker process as the store knows it, and what it may give to sandboxes."""

    name: str = Field(description="host, process and start: never used twice")
    host: str = ""
    engine: str = Field("", description="identity of its Docker engine")
    slots: int = 1
    memory_bytes: int | None = Field(None, description="its engine's share; None: no limit")
    cpus: float | None = None
    free_bytes: int | None = Field(None, description="memory that is available there right now")
    seen_at: float = 0.0


class Claim(Record):
    """One worker's right to work on one job."""

    job_id: str
    generation: int
    losses: int = Field(0, description="claims in a row that were lost without any progress")
    claimed_at: float = Field(0.0, description="by the store's clock")


class Attempt(Record):
    """What one claim of a job came to."""

    generation: int
    worker: str
    started_at: float
    ended_at: float | None = None
    ending: str = Field("", description="released, finished, lost; empty: it goes on")
    figures: Wire = Field(default_factory=dict, description="of the worker, as last reported")


class Listed(Record):
    """A job as lists show it. `status` is final only when everything of the job is stored."""

    job: Job
    order: Order = Order()
    created_at: float = 0.0
    updated_at: float = 0.0
    ended_at: float | None = None
    generation: int = 0
    losses: int = 0
    worker: str = ""
    is_held: bool = Field(default=False, description="a worker has a live lease on it")
    is_cancelling: bool = False
    waits_for: str = Field("", description="why no worker has taken it, if one has looked")
    place: str = ""
    engine: str = ""
    events: int = 0


class Counts(Record):
    """How the queue stands."""

    claimable: int = Field(0, description="queued, or with a lease that is over")
    held: int = 0
    lapses_in_s: float | None = Field(
        None, description="seconds until the first lease is over, if nobody renews it"
    )


def is_progress(event: Event) -> bool:
    """Whether an event shows that a job got on, which makes up for the workers that it has lost.

    The result of a call that was not run, or of which nobody knows, shows nothing: whoever buries
    a job gives its calls such results.
    """
    if isinstance(event, ResultAdded):
        return event.result.status in {ResultStatus.OK, ResultStatus.ERROR}
    return isinstance(event, ReplyAdded | Ended)


@runtime_checkable
class Store(Protocol):
    """Keeps jobs and their events.

    Every method may raise `worker.errors.StoreUnavailable` when the store itself fails; nothing is
    half written then. Methods that name a job raise `JobUnknown`. Safe to use from several
    threads, and after a fork in both processes.
    """

    @property
    def identity(self) -> str:
        """Names this store among all, for the labels of its sandboxes."""

    def close(self) -> None:
        """Let go of connections. Safe to call twice."""

    # ---- whoever submits and looks

    def create(self, job: Job, order: Order | None = None) -> str:
        """Keep a new job and return its id; with a known `order.key` return that job's id.

        Raises `JobExists` if there is one of that id.
        """

    def keyed(self, key: str) -> str | None:
        """Return the id of the job whose `order.key` this is, if there is one."""

    def load(self, job_id: str) -> tuple[Job, tuple[Event, ...]]:
        """Return the job as it was created and all its events, oldest first."""

    def events(self, job_id: str, after: int = 0) -> tuple[Event, ...]:
        """Return the events of a job but for the first `after`."""

    def get(self, job_id: str) -> Listed:
        """Return one job as it stands, its artefacts included."""

    def jobs(self, status: Status | None = None, limit: int = 100) -> tuple[Listed, ...]:
        """Return jobs, the newest first; the parts that only `get` tells may be missing."""

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        """Return what became of each claim of a job, oldest first."""

    def request_cancel(self, job_id: str) -> None:
        """Let whoever holds the job know that it is to end. Does nothing for one that is over."""

    # ---- whoever works

    def claim(self, job_id: str, worker: str = "", lease_s: float = 0.0) -> Claim:
        """Take this job, for `lease_s` (0: anybody may take it from us at any time).

        Raises `JobTaken` while another's lease lives, and for a job that is over.
        """

    def claim_next(self, worker: WorkerSeen, lease_s: float) -> Claim | None:
        """Take the job that is due: the highest priority first, then the oldest, that fits.

        A job fits when what it reserves is available there, and, together with what the held jobs
        of that engine reserve, within the engine's share. One that was in a sandbox on another
        engine is left to that engine's workers for a minute. Why a job was passed over is kept.
        One that has waited for five minutes and can fit is not passed over: room is made for it.
        None: there is nothing to do.
        """

    def order(self, job_id: str) -> Order:
        """Return what was asked."""

    def append(self, job_id: str, event: Event, *, generation: int) -> None:
        """Add one event. It is kept for good when this returns, and not at all when this raises.

        What `is_progress` makes up for the claims that were lost. Raises `LeaseLost` if a later
        claim was made than the one that gave `generation`, or the job was released.
        """

    def renew(self, job_id: str, *, generation: int, lease_s: float, figures: Wire) -> None:
        """Hold the job for `lease_s` from now on. Raises `LeaseLost` as `append` does."""

    def lose(self, worker: str) -> tuple[str, ...]:
        """Let the leases of a worker end now, because it is surely dead; return its jobs.

        They are lost as if their leases had run out. `worker` is as it was named in the claims.
        """

    def is_cancel_requested(self, job_id: str) -> bool:
        """Whether `request_cancel` was called."""

    def release(self, job_id: str, *, generation: int) -> Status:
        """Give the job back: closed for good if its events say that it ended, else queued.

        Returns the status that it has now. Raises `LeaseLost` as `append` does.
        """

    # ---- whoever tends

    def counts(self) -> Counts:
        """Count what waits and what is held."""

    def standing(self, job_ids: Sequence[str]) -> Mapping[str, Standing]:
        """Tell for the reaper how jobs stand; one that is unknown is left out."""

    def tenants(self, places: Sequence[str]) -> Mapping[str, str]:
        """Tell for the reaper which job lives in which sandbox, of those that have not ended."""

    def see(self, worker: WorkerSeen) -> None:
        """Note that a worker lives. Those not seen for a day are forgotten."""

    def workers(self, within_s: float = 60.0) -> tuple[WorkerSeen, ...]:
        """Return the workers that were seen lately."""

    def undelivered(self, older_than_s: float = 0.0) -> tuple[tuple[str, Wire], ...]:
        """Ends that a pipeline waits for: job ids with `order.deliver`, until `delivered`.

        Those that ended, or were returned here, less than `older_than_s` ago are left out.
        """

    def delivered(self, job_id: str) -> None:
        """The pipeline has been told."""
