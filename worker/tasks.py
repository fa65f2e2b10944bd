"""The Celery tasks: the bell, the sweep, and a job as one step of a pipeline.

`run` may stand in a chain, group or chord, or be called by itself:

    chain(extract.s(), run.s("Which region lost most?"), notify.s())
    run.delay("How many rows are there?", files=["/data/sales.csv"])

* The last positional argument, or `goal=…`, is the goal. What a task before it in a chain
  returned comes first and becomes part of what the agent is told: in the goal when it is short, as
  a file of the workspace when it is long. `run.si(…)` leaves it out.
* Settings of the job go into `options={"max_steps": 5}`; `worker.step.Step` has all arguments.
* It returns a dict with the fields of `worker.delivery.JobResult`, or raises `JobFailed` when the
  job has no answer (with `raise_on_failure=False` it returns that, too).
* A task is one job, however often its message is delivered; the job's id is the task's, or is made
  from it. With an `idempotency_key`, all tasks of that key are one job, which is the first one's.
* It holds no worker while its job runs. Revoking it cancels its job, but not that of another task
  of the same key.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from celery import Task, current_task, signals
from celery.exceptions import Ignore, Reject, Retry
from celery.states import READY_STATES

from sandbox.errors import SandboxError
from worker import draining
from worker.celery_app import (
    BELLS,
    COLLECT,
    PIPELINE,
    RING,
    RUN,
    SWEEP,
    app,
    check_broker,
    connect,
    in_force,
    lenient,
    publish_bells,
    waiting,
)
from worker.celery_app import ring as ring_now
from worker.delivery import (
    JobFailed,
    Turn,
    failure_of,
    job_id_of,
    place_of,
    result_of,
    task_of,
    tell,
)
from worker.errors import (
    BrokerUnavailable,
    CaissonError,
    InputInvalid,
    JobExists,
    JobUnknown,
    StoreUnavailable,
)
from worker.messages import Status, Wire
from worker.pulse import process_name
from worker.settings import Settings
from worker.spares import borrower
from worker.station import Station, Worked
from worker.step import Step, check_step, read_step
from worker.store.base import Store
from worker.store.blobs import Blobs
from worker.store.database import open_store
from worker.submission import Submission, submit

_log = logging.getLogger(__name__)
_MOST_BELLS = 100  # of one sweep
_MOST_DATA_CHARS = 4000  # of what a task before returned; more becomes a file


# ---- what each process of the pool has for itself


@dataclass
class _Own:
    """Connections of one process; those of its parent must not be used after a fork."""

    settings: Settings
    store: Store
    pid: int = field(default_factory=os.getpid)

    @cached_property
    def station(self) -> Station:
        return Station(
            self.settings,
            self.store,
            name=process_name(worker_name(), self.pid),
            is_draining=draining.is_draining,
            spares=borrower(),
        )


_owns: list[_Own] = []
_name: list[str] = []


def named(name: str) -> None:
    """Give this worker a name; its processes inherit it."""
    _name[:] = [name]


def worker_name() -> str:
    return _name[0] if _name else f"{socket.gethostname()}-{os.getppid()}"


def _own() -> _Own:
    """What this process has; made when it is first needed. Raises `StoreUnavailable`."""
    if not _owns or _owns[0].pid != os.getpid():
        settings = in_force()
        _owns[:] = [_Own(settings, open_store(settings.database))]
    return _owns[0]


# ---- bells


@app.task(name=RING, ignore_result=True, shared=False)  # type: ignore[untyped-decorator]
def ring() -> None:
    """Look for work and do it: one job at most. What fails on our side is tried again later."""
    if draining.is_draining():
        return
    try:
        own = _own()
        with draining.heeding_term():
            worked = own.station.work_next()
        if worked is not None:
            _pass_on(own, worked)
    except (CaissonError, SandboxError) as error:
        _log.warning("no work is done: %s", error)


def _pass_on(own: _Own, worked: Worked) -> None:
    """After a job: tell the pipeline that waits for it, and wake somebody for what waits."""
    with connect(own.settings) as connection, lenient():
        if worked.status.is_final:
            place = own.store.order(worked.job_id).deliver
            if place is not None:
                tell(connection, worked.job_id, place)
        if own.store.counts().claimable and not waiting(connection, BELLS):
            publish_bells(connection, 1)


@app.task(name=SWEEP, ignore_result=True, shared=False)  # type: ignore[untyped-decorator]
def sweep() -> None:
    """See `sweep_now`."""
    try:
        own = _own()
        with lenient():
            sweep_now(own.settings, own.store)
    except CaissonError as error:
        _log.warning("no sweep: %s", error)


def sweep_now(settings: Settings, store: Store) -> int:
    """Ring for jobs that wait and have no bell, and tell pipelines that were not; count the bells.

    Harmless when it is done twice, or by several. Raises what the broker's driver raises.
    """
    claimable = store.counts().claimable
    with connect(settings) as connection:
        missing = min(_MOST_BELLS, max(0, claimable - waiting(connection, BELLS)))
        publish_bells(connection, missing)
        if not waiting(connection, PIPELINE):  # else they may have been told, and nobody has heard
            for job_id, place in store.undelivered(2 * settings.sweep_s):
                tell(connection, job_id, place)
    return missing


# ---- a job as one step of a pipeline


class PipelineTask(Task):  # type: ignore[misc]
    """A task that goes to our queue from whichever application; safe to be delivered again.

    It is acknowledged late, because it is short and its message is all there is of it.
    """

    acks_late = True
    reject_on_worker_lost = True
    retry_on_worker_lost = True
    max_retries = None  # no limit; to `retry`, None would mean this attribute
    throws = (JobFailed, InputInvalid, CaissonError)

    def signature(self, args: Any = None, *more: Any, **options: Any) -> Any:  # noqa: ANN401
        made = super().signature(args, *more, **options)
        made.options.setdefault("queue", PIPELINE)  # for those who do not know this class
        return made

    subtask = signature

    def again(self, why: CaissonError | None = None) -> Retry | Reject:
        """What to raise so that the task is tried again in a while, as often as it takes."""
        try:
            later: Retry = self.retry(exc=why, countdown=in_force().sweep_s, throw=False)
        except Reject as error:  # the broker is away, too; it has the message still
            return Reject(error.reason, requeue=True)
        return later


class RunTask(PipelineTask):
    """Refuses at once what cannot be run or sent, where a person may still do something about it.

    Within a worker nothing is asked: there, a failure is the task's own and belongs to its result.
    """

    def signature(self, args: Any = None, *more: Any, **options: Any) -> Any:  # noqa: ANN401
        check_step(args or (), (more[0] if more else options.get("kwargs")) or {})
        return super().signature(args, *more, **options)

    subtask = signature

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # noqa: ANN401
        """Send it. Raises `InputInvalid`, and `BrokerUnavailable` within three seconds."""
        if not current_task:
            read_step(args or (), kwargs or {})
            check_broker(in_force())  # Celery would try for 20 s, and then complain of results
        return super().apply_async(args, kwargs, **options)


@app.task(base=RunTask, bind=True, name=RUN, shared=False)  # type: ignore[untyped-decorator]
def run(self: PipelineTask, *texts: Any, **fields: Any) -> NoReturn:  # noqa: ANN401
    """Let an agent work on a goal; see this module, and `worker.step.Step` for the arguments."""
    step = read_step(texts, fields)
    place = place_of(self.request, raise_on_failure=step.raise_on_failure)
    try:
        own = _own()
        job_id = _job_of(self.request.id, step, place, own)
        if _is_of(self.request.id, own.store, job_id):
            _wake(own.settings)
        else:
            _tell_too(own.settings, job_id, place)
    except (StoreUnavailable, BrokerUnavailable) as error:
        raise self.again(error) from error
    raise Ignore  # the result comes with the end of the job


def _job_of(task_id: str, step: Step, place: Wire, own: _Own) -> str:
    """The job of a task, which is there already when its key, or the message, was seen before.

    Then nothing that the task names is looked at: its files may be gone.
    """
    job_id = job_id_of(task_id)
    if _is_of(task_id, own.store, job_id):
        return job_id
    if step.idempotency_key is not None and (known := own.store.keyed(step.idempotency_key)):
        return known
    try:
        return _submit(step, task_id, place, own)
    except JobExists:
        if _is_of(task_id, own.store, job_id):  # by the same message, at the same time
            return job_id
        raise


def _is_of(task_id: str, store: Store, job_id: str) -> bool:
    """Whether there is such a job, and this task has made it."""
    try:
        return task_of(store.order(job_id).deliver) == task_id
    except JobUnknown:
        return False


def _submit(step: Step, task_id: str, place: Wire, own: _Own) -> str:
    with tempfile.TemporaryDirectory(prefix="caisson-") as folder:
        goal, files = _with_data(step, Path(folder))
        what = Submission(
            goal=goal,
            files=files,
            mounts=step.mounts,
            replay=step.replay,
            id=job_id_of(task_id),
            key=step.idempotency_key,
            priority=step.priority,
            deliver=place,
            options=step.options,
        )
        return submit(what, own.settings, own.store, Blobs(own.settings.home / "blobs"))


def _with_data(step: Step, folder: Path) -> tuple[str, tuple[Path, ...]]:
    """The goal and the files, with what the task before it returned in one of them."""
    if step.data is None:
        return step.goal, step.files
    is_text = isinstance(step.data, str)
    text = step.data if is_text else json.dumps(step.data, ensure_ascii=False, indent=1)
    if len(text) <= _MOST_DATA_CHARS:
        return f"{step.goal}\n\nThe step before this one gave:\n{text}", step.files
    file = folder / ("data.txt" if is_text else "data.json")
    file.write_text(text, encoding="utf-8")
    told = f"{step.goal}\n\nWhat the step before this one gave is in the file {file.name}."
    return told, (*step.files, file)


def _wake(settings: Settings) -> None:
    try:
        ring_now(settings)
    except BrokerUnavailable as error:  # the sweep rings
        _log.warning("%s", error)


def _tell_too(settings: Settings, job_id: str, place: Wire) -> None:
    """Let the pipeline of a task go on after another task's job. Raises `BrokerUnavailable`."""
    try:
        with connect(settings) as connection:
            tell(connection, job_id, place, is_shared=True)
    except Exception as error:
        raise BrokerUnavailable(f"the broker cannot be reached: {error}") from error


_turn = Turn()


class CollectTask(PipelineTask):
    """Notes that a pipeline was told, after the next task was sent and the result stored."""

    def after_return(self, status: str, retval: Any, *rest: Any) -> None:  # noqa: ANN401
        del status, retval
        _, args, kwargs, _ = rest
        if not kwargs.get("is_shared"):
            _own().store.delivered(args[0])


@app.task(base=CollectTask, bind=True, name=COLLECT, shared=False)  # type: ignore[untyped-decorator]
def collect(
    self: CollectTask, job_id: str, *, raise_on_failure: bool = True, is_shared: bool = False
) -> Wire:
    """Take the place of the `run` whose job has ended: return its result, or raise."""
    try:
        own = _own()
        _turn.take(own.settings.home, self.request.id)
        if _is_told(self):
            if not is_shared:
                own.store.delivered(job_id)
            raise Ignore
        job = own.store.get(job_id).job
    except StoreUnavailable as error:
        raise self.again(error) from error
    if not job.status.is_final:
        raise self.again()
    if raise_on_failure and job.status is not Status.SUCCEEDED:
        raise JobFailed(failure_of(job))
    return result_of(job, own.settings.max_result_bytes)


def _is_told(task: Task) -> bool:
    """Whether an earlier message of this end has gone all its way.

    In a chord the result is stored before the chord is told, which may be done twice.
    """
    return not task.request.chord and task.backend.get_state(task.request.id) in READY_STATES


@signals.task_postrun.connect(sender=collect)  # type: ignore[untyped-decorator]
def _leave_turn(**_: object) -> None:
    """After everything else: the next task is sent and the result stored, or it is tried again."""
    _turn.leave()
