"""Kill a worker, all its processes at once, at a named moment, once: for bench.kills.

    MORTAL_PLAN=/path caisson worker --include bench.mortal

The file holds a moment and a number, such as "reply stored:2": the second time that a reply has
just been stored by one process since the file was written. Whoever takes the file away dies;
while there is none nobody does, so the job can be gone on with.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import psutil

from worker.messages import Event, Status
from worker.store import database
from worker.store.base import Claim, WorkerSeen
from worker.store.sql import SqlStore

BEFORE_CLAIM, AFTER_CLAIM = "before claim", "after claim"
RUNNING, RELEASED = "call running", "released"
STORED = {
    "opened": "sandbox opened",
    "reply": "reply stored",
    "call": "intent stored",
    "result": "result stored",
    "artifacts": "artefact collected",
    "ended": "finishing",
}
_RUNNING_S = 0.4  # after its intent is stored, a call runs by then

_seen: Counter[str] = Counter()


def strike(moment: str, delay_s: float = 0.0) -> None:
    """Die if this is the moment."""
    if "MORTAL_PLAN" not in os.environ:  # not a worker, but who reads what it does
        return
    plan = Path(os.environ["MORTAL_PLAN"])
    try:
        wanted, _, number = plan.read_text().partition(":")
    except FileNotFoundError:
        _seen.clear()
        return
    _seen[moment] += 1
    if moment != wanted or _seen[moment] != int(number):
        return
    if delay_s:
        threading.Timer(delay_s, _die, (plan,)).start()
    else:
        _die(plan)


def _die(plan: Path) -> None:
    try:
        plan.rename(plan.with_suffix(".done"))
    except FileNotFoundError:  # somebody else has died for it
        return
    os.utime(plan.with_suffix(".done"))
    consumer = psutil.Process(os.getsid(0))  # leads a session of its own
    os.killpg(os.getpgid(consumer.ppid()), signal.SIGKILL)
    os.killpg(os.getpgrp(), signal.SIGKILL)


class MortalStore(SqlStore):
    """A store whose process dies with a write, or right after it."""

    def claim_next(self, worker: WorkerSeen, lease_s: float) -> Claim | None:
        if self.counts().claimable:
            strike(BEFORE_CLAIM)
        claim = super().claim_next(worker, lease_s)
        if claim is not None:
            strike(AFTER_CLAIM)
        return claim

    def append(self, job_id: str, event: Event, *, generation: int) -> None:
        super().append(job_id, event, generation=generation)
        strike(STORED.get(event.kind, event.kind))
        if event.kind == "call":
            strike(RUNNING, _RUNNING_S)

    def release(self, job_id: str, *, generation: int) -> Status:
        status = super().release(job_id, generation=generation)
        strike(RELEASED)
        return status


database.SqlStore = MortalStore  # type: ignore[misc]
