"""End a job because somebody asked for it, whoever has it at the moment."""

from __future__ import annotations

from worker.errors import Cancelled, JobTaken
from worker.history import History
from worker.hooks import Run
from worker.messages import Status
from worker.store.base import Store

_LEASE_S = 30.0  # for a few writes


def cancel(store: Store, job_id: str) -> Status:
    """Ask for the end of a job; one that nobody works on ends here and now.

    Returns how it stands then. A worker that has it hears of it within a second; when that worker
    is lost, whoever takes the job over does. Raises `JobUnknown` and `StoreUnavailable`.
    """
    store.request_cancel(job_id)
    if History(*store.load(job_id)).job.status.is_final:
        return store.get(job_id).job.status  # a worker has yet to put away what it made
    try:
        claim = store.claim(job_id, "cancel", _LEASE_S)
    except JobTaken:
        return store.get(job_id).job.status
    run = Run(History(*store.load(job_id)), store, claim.generation)
    if not run.job.status.is_final:
        run.end(Cancelled())
    return store.release(job_id, generation=claim.generation)
