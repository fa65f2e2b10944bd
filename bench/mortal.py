"""A `caisson` whose process group is killed with SIGKILL at a named moment, once: for bench.kills.

    MORTAL_AT="reply stored:2" MORTAL_FILE=/path python -m bench.mortal worker …

The moment is the second at which a reply has just been stored, counted per process. Whoever
creates the file dies; while it exists nobody else does, so the job can be gone on with.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

from worker.cli import main
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

_wanted, _, _number = os.environ.get("MORTAL_AT", "").partition(":")
_seen: Counter[str] = Counter()


def strike(moment: str, delay_s: float = 0.0) -> None:
    """Die if this is the moment."""
    _seen[moment] += 1
    if moment != _wanted or _seen[moment] != int(_number):
        return
    try:
        Path(os.environ["MORTAL_FILE"]).touch(exist_ok=False)
    except FileExistsError:
        return
    if delay_s:
        threading.Timer(delay_s, _die).start()
    else:
        _die()


def _die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


class MortalStore(SqlStore):
    """A store whose process dies with a write, or right after it."""

    def claim_next(self, worker: WorkerSeen, lease_s: float) -> Claim | None:
        if _wanted == BEFORE_CLAIM and self.counts().claimable:
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


if __name__ == "__main__":
    database.SqlStore = MortalStore  # type: ignore[misc]
    main()
