"""A store in memory: for jobs that live as long as their process, and for tests."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sandbox.types import Standing
from worker.admission import PATIENCE_S, PREFERRED_S, can_ever_fit, lacking, reserved
from worker.errors import JobExists, JobTaken, JobUnknown, LeaseLost
from worker.history import fold
from worker.messages import Event, Job, Order, SandboxOpened, Status, Wire
from worker.store.base import Attempt, Claim, Counts, Listed, WorkerSeen, is_progress

_FORGOTTEN_S = 86_400.0


@dataclass
class _Entry:
    job: Job
    order: Order
    created_at: float
    number: int
    folded: Job
    events: list[Event] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    status: Status = Status.QUEUED
    generation: int = 0
    losses: int = 0
    lease_until: float | None = None
    worker: str = ""
    place: str = ""
    engine: str = ""
    waits_for: str = ""
    updated_at: float = 0.0
    ended_at: float | None = None
    is_cancelling: bool = False
    told_at: float | None = None
    is_delivered: bool = False


class MemoryStore:
    """See `worker.store.base.Store`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        preferred_s: float = PREFERRED_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.identity = f"memory-{uuid.uuid4().hex[:12]}"
        self._clock = clock
        self._preferred_s = preferred_s
        self._patience_s = patience_s
        self._entries: dict[str, _Entry] = {}
        self._workers: dict[str, WorkerSeen] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Nothing is held open."""

    # ---- whoever submits and looks

    def create(self, job: Job, order: Order | None = None) -> str:
        order = order or Order()
        with self._lock:
            if order.key is not None and (known := self._keyed(order.key)):
                return known
            if job.id in self._entries:
                raise JobExists(f"there is a job {job.id} already")
            now = self._clock()
            self._entries[job.id] = _Entry(
                job, order, now, len(self._entries), folded=job, updated_at=now
            )
            return job.id

    def keyed(self, key: str) -> str | None:
        with self._lock:
            return self._keyed(key)

    def load(self, job_id: str) -> tuple[Job, tuple[Event, ...]]:
        with self._lock:
            entry = self._entry(job_id)
            return entry.job, tuple(entry.events)

    def events(self, job_id: str, after: int = 0) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._entry(job_id).events[after:])

    def get(self, job_id: str) -> Listed:
        with self._lock:
            return self._listed(self._entry(job_id))

    def jobs(self, status: Status | None = None, limit: int = 100) -> tuple[Listed, ...]:
        with self._lock:
            newest = sorted(self._entries.values(), key=lambda entry: -entry.number)
            fit = (entry for entry in newest if status in {None, entry.status})
            return tuple(self._listed(entry) for entry, _ in zip(fit, range(limit), strict=False))

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        with self._lock:
            return tuple(self._entry(job_id).attempts)

    def request_cancel(self, job_id: str) -> None:
        with self._lock:
            entry = self._entry(job_id)
            entry.is_cancelling = entry.is_cancelling or not entry.status.is_final

    # ---- whoever works

    def claim(self, job_id: str, worker: str = "", lease_s: float = 0.0) -> Claim:
        with self._lock:
            entry = self._entry(job_id)
            if entry.status.is_final:
                raise JobTaken(f"job {job_id} is over: {entry.status}")
            if self._is_held(entry):
                raise JobTaken(f"worker {entry.worker} holds job {job_id}")
            return self._claim(entry, worker, lease_s)

    def claim_next(self, worker: WorkerSeen, lease_s: float) -> Claim | None:
        with self._lock:
            for entry in self._due():
                if self._is_left_to_another(entry, worker):
                    continue
                entry.waits_for = self._lacks(entry, worker)
                if not entry.waits_for:
                    entry.engine = worker.engine
                    return self._claim(entry, worker.name, lease_s)
                is_late = self._clock() - entry.created_at > self._patience_s
                if is_late and can_ever_fit(entry.order, worker):
                    break
            return None

    def order(self, job_id: str) -> Order:
        with self._lock:
            return self._entry(job_id).order

    def append(self, job_id: str, event: Event, *, generation: int) -> None:
        with self._lock:
            entry = self._owned(job_id, generation)
            entry.events.append(event)
            entry.folded = fold(entry.folded, event)
            entry.updated_at = self._clock()
            if is_progress(event):
                entry.losses = 0
            if isinstance(event, SandboxOpened):
                entry.place, entry.engine = event.place, event.engine

    def renew(self, job_id: str, *, generation: int, lease_s: float, figures: Wire) -> None:
        with self._lock:
            entry = self._owned(job_id, generation)
            entry.lease_until = self._clock() + lease_s
            self._end_attempt(entry, figures=figures)

    def lose(self, worker: str) -> tuple[str, ...]:
        with self._lock:
            entries = self._entries.values()
            found = [one for one in entries if one.worker == worker and self._is_held(one)]
            for entry in found:
                entry.lease_until = self._clock()
            return tuple(entry.job.id for entry in found)

    def is_cancel_requested(self, job_id: str) -> bool:
        with self._lock:
            return self._entry(job_id).is_cancelling

    def release(self, job_id: str, *, generation: int) -> Status:
        with self._lock:
            entry = self._owned(job_id, generation)
            is_over = entry.folded.status.is_final
            entry.status = entry.folded.status if is_over else Status.QUEUED
            now = entry.updated_at = self._clock()
            entry.ended_at = now if is_over else None
            entry.losses, entry.lease_until = 0, None
            self._end_attempt(entry, ending="finished" if is_over else "released", ended_at=now)
            return entry.status

    # ---- whoever tends

    def counts(self) -> Counts:
        with self._lock:
            ends = [e.lease_until for e in self._entries.values() if self._is_held(e)]
            lapses_in_s = min(filter(None, ends)) - self._clock() if ends else None
            claimable = sum(1 for _ in self._due())
            return Counts(claimable=claimable, held=len(ends), lapses_in_s=lapses_in_s)

    def standing(self, job_ids: Sequence[str]) -> Mapping[str, Standing]:
        with self._lock:
            return {
                entry.job.id: Standing(
                    is_over=entry.status.is_final,
                    is_held=self._is_held(entry),
                    generation=entry.generation,
                    place=entry.place,
                    engine=entry.engine,
                )
                for entry in self._entries.values()
                if entry.job.id in job_ids
            }

    def tenants(self, places: Sequence[str]) -> Mapping[str, str]:
        with self._lock:
            living = [e for e in self._entries.values() if not e.status.is_final]
            return {entry.place: entry.job.id for entry in living if entry.place in places}

    def see(self, worker: WorkerSeen) -> None:
        with self._lock:
            now = self._clock()
            self._workers[worker.name] = worker.model_copy(update={"seen_at": now})
            kept = {n: w for n, w in self._workers.items() if now - w.seen_at < _FORGOTTEN_S}
            self._workers = kept

    def workers(self, within_s: float = 60.0) -> tuple[WorkerSeen, ...]:
        with self._lock:
            since = self._clock() - within_s
            return tuple(w for w in self._workers.values() if w.seen_at >= since)

    def undelivered(self, older_than_s: float = 0.0) -> tuple[tuple[str, Wire], ...]:
        with self._lock:
            now, found = self._clock(), []
            for entry in self._entries.values():
                if entry.order.deliver is None or entry.is_delivered or entry.ended_at is None:
                    continue
                if now - (entry.told_at or entry.ended_at) >= older_than_s:
                    entry.told_at = now
                    found.append((entry.job.id, entry.order.deliver))
            return tuple(found)

    def delivered(self, job_id: str) -> None:
        with self._lock:
            self._entry(job_id).is_delivered = True

    # ---- below the lock

    def _keyed(self, key: str) -> str | None:
        found = (one.job.id for one in self._entries.values() if one.order.key == key)
        return next(found, None)

    def _entry(self, job_id: str) -> _Entry:
        try:
            return self._entries[job_id]
        except KeyError:
            raise JobUnknown(f"no job {job_id}") from None

    def _owned(self, job_id: str, generation: int) -> _Entry:
        entry = self._entry(job_id)
        if generation != entry.generation or entry.lease_until is None:
            raise LeaseLost(f"job {job_id} belongs to generation {entry.generation} now")
        return entry

    def _is_held(self, entry: _Entry) -> bool:
        return entry.lease_until is not None and entry.lease_until > self._clock()

    def _due(self) -> Iterator[_Entry]:
        """Claimable jobs, the one that is due first."""
        by_due = sorted(self._entries.values(), key=lambda e: (-e.order.priority, e.number))
        yield from (e for e in by_due if not e.status.is_final and not self._is_held(e))

    def _is_left_to_another(self, entry: _Entry, worker: WorkerSeen) -> bool:
        since = max(entry.updated_at, entry.lease_until or 0.0)
        is_elsewhere = bool(entry.place) and entry.engine not in {"", worker.engine}
        return is_elsewhere and self._clock() - since < self._preferred_s

    def _lacks(self, entry: _Entry, worker: WorkerSeen) -> str:
        held = [
            e.order
            for e in self._entries.values()
            if e is not entry and self._is_held(e) and e.engine == worker.engine
        ]
        return lacking(entry.order, reserved(held), worker)

    def _claim(self, entry: _Entry, worker: str, lease_s: float) -> Claim:
        now = self._clock()
        if entry.lease_until is not None:
            self._end_attempt(entry, ending="lost", ended_at=entry.lease_until)
            entry.losses += 1
        entry.generation += 1
        entry.status, entry.worker, entry.waits_for = Status.RUNNING, worker, ""
        entry.lease_until = now + lease_s
        entry.attempts.append(Attempt(generation=entry.generation, worker=worker, started_at=now))
        return Claim(
            job_id=entry.job.id,
            generation=entry.generation,
            losses=entry.losses,
            claimed_at=now,
        )

    def _end_attempt(self, entry: _Entry, **changes: object) -> None:
        entry.attempts[-1] = entry.attempts[-1].model_copy(update=changes)

    def _listed(self, entry: _Entry) -> Listed:
        shown = entry.folded.model_copy(update={"status": entry.status})
        return Listed(
            job=shown,
            order=entry.order,
            created_at=entry.created_at,
            updated_at=entry.updated_at,
            ended_at=entry.ended_at,
            generation=entry.generation,
            losses=entry.losses,
            worker=entry.worker,
            is_held=self._is_held(entry),
            is_cancelling=entry.is_cancelling,
            waits_for=entry.waits_for,
            place=entry.place,
            engine=entry.engine,
            events=len(entry.events),
        )
