"""A store in memory: for jobs that live as long as their process, and for tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from worker.errors import JobExists, JobUnknown, LeaseLost
from worker.messages import Event, Job


@dataclass
class _Entry:
    job: Job
    events: list[Event] = field(default_factory=list)
    generation: int = 0


class MemoryStore:
    """See `worker.store.base.Store`."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def create(self, job: Job) -> None:
        with self._lock:
            if job.id in self._entries:
                raise JobExists(f"there is a job {job.id} already")
            self._entries[job.id] = _Entry(job)

    def load(self, job_id: str) -> tuple[Job, tuple[Event, ...]]:
        with self._lock:
            entry = self._entry(job_id)
            return entry.job, tuple(entry.events)

    def claim(self, job_id: str) -> int:
        with self._lock:
            entry = self._entry(job_id)
            entry.generation += 1
            return entry.generation

    def append(self, job_id: str, event: Event, *, generation: int) -> None:
        with self._lock:
            entry = self._entry(job_id)
            if generation < entry.generation:
                raise LeaseLost(f"job {job_id} belongs to generation {entry.generation} now")
            entry.events.append(event)

    def _entry(self, job_id: str) -> _Entry:
        try:
            return self._entries[job_id]
        except KeyError:
            raise JobUnknown(f"no job {job_id}") from None
