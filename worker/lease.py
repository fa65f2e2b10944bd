"""A worker's hold on one job, kept alive by a thread of its own.

The worker judges its lease by a clock of its own that also runs while the process is stopped or
the machine sleeps, counted from before the store was asked: so it stops working on a job before
the store lets anybody else begin.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

from worker.errors import Handover, Infrastructure, JobUnknown, LeaseLost
from worker.messages import Wire
from worker.store.base import Claim, Store

_log = logging.getLogger(__name__)
_POLL_S = 0.5  # a cancelled job ends within a second


def never() -> bool:
    return False


def clock() -> float:
    """Seconds that go on while this process is stopped and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Renews a claim until it is left; tells the work whether it may go on.

    Args:
        store: Where the claim was made.
        claim: What it gave.
        lease_s: How long each renewal holds.
        asked_at: `clock()` before the claim was asked for.
        is_draining: Whether this worker is to let go of its jobs.
    """

    def __init__(
        self,
        store: Store,
        claim: Claim,
        lease_s: float,
        asked_at: float,
        is_draining: Callable[[], bool] = never,
    ) -> None:
        self.claim = claim
        self._store = store
        self._lease_s = lease_s
        self._asked_at = asked_at
        self._ends_at = asked_at + lease_s
        self._is_draining = is_draining
        self._is_lost = False
        self._is_cancelled = False
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Renew it no more: the job is about to be released."""
        self._left.set()
        self._thread.join()

    def now(self) -> float:
        """The store's time, as far as is known here: workers need not agree about theirs."""
        return self.claim.claimed_at + clock() - self._asked_at

    def check(self) -> None:
        """Raise `LeaseLost` unless the job is still this worker's."""
        if self._is_lost or clock() >= self._ends_at:
            raise LeaseLost(f"the lease of job {self.claim.job_id} is over")

    def is_cancelled(self) -> bool:
        """Whether the job is to end; raises `LeaseLost`, or `Handover` when the worker drains."""
        self.check()
        if self._is_draining():
            raise Handover(f"job {self.claim.job_id} is handed over")
        return self._is_cancelled

    def _keep(self) -> None:
        interval_s = self._lease_s / 3
        poll_s = min(_POLL_S, interval_s)
        due = clock()  # at once: the figures of the beginning are worth having
        while not self._left.wait(poll_s) and not self._is_lost:
            try:
                self._is_cancelled = self._store.is_cancel_requested(self.claim.job_id)
                if clock() >= due:
                    due = clock() + interval_s
                    self._renew()
            except (LeaseLost, JobUnknown) as error:
                _log.warning("job %s: %s", self.claim.job_id, error)
                self._is_lost = True
            except Infrastructure as error:  # it may come back before the lease is over
                _log.warning("job %s: the lease cannot be renewed: %s", self.claim.job_id, error)

    def _renew(self) -> None:
        asked_at = clock()
        self._store.renew(
            self.claim.job_id,
            generation=self.claim.generation,
            lease_s=self._lease_s,
            figures=figures(),
        )
        self._ends_at = asked_at + self._lease_s


def figures() -> Wire:
    """What a post-mortem should know of the worker: memory of this process and of the host."""
    host = psutil.virtual_memory()
    return {
        "rss_bytes": psutil.Process().memory_info().rss,
        "host_free_bytes": host.available,
        "host_load": round(psutil.getloadavg()[0], 2),
    }
