"""Run a job from its goal to its end: open its sandbox, drive it, replace what breaks, collect."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sandbox.base import Sandbox
from sandbox.errors import LinkLost, SandboxError, SandboxUnavailable, StaleGeneration
from sandbox.types import SandboxSpec
from worker import assembly
from worker.artifacts import Caps, Keep, Shelf, collect
from worker.budget import spent
from worker.builtin import Workplace
from worker.errors import Infrastructure, InputInvalid, LeaseLost, Stop, StoreUnavailable
from worker.history import History
from worker.hooks import Observer, Run
from worker.loop import Loop
from worker.messages import (
    FinishReason,
    Job,
    Message,
    MessageAdded,
    Record,
    SandboxOpened,
    SandboxReplaced,
)
from worker.prompts import notice
from worker.settings import Settings
from worker.store.memory import MemoryStore

_log = logging.getLogger(__name__)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_REJOINS = 3  # links that may break, one after the other, before the sandbox is given up
_NAMED = 20  # restored files that the model is told by name


def never() -> bool:
    return False


class JobRequest(Record):
    """What somebody wants done."""

    goal: str
    files: tuple[Path, ...] = ()
    mounts: tuple[Path, ...] = ()
    replay: Path | None = None
    record: Path | None = None
    id: str | None = None


@dataclass
class Runner:
    """Drives jobs of one agent. Whatever breaks on our side, a job ends or can be driven again.

    `keep` takes what the job made out of its sandbox; `engine` names the engine of its sandboxes.
    """

    loop: Loop
    place: Workplace
    keep: Keep
    engine: str = ""
    _rejoined: int = 0
    _why: object = "its worker was interrupted"  # should the sandbox be another than before

    def work(self, run: Run, opening: tuple[Message, ...] = ()) -> Job:
        """Work on a claimed job until it ends or must wait.

        `opening` are the first messages of a job that has none. Raises `LeaseLost` when another
        worker took it, `Handover` when this one is to let go of it, `SpecInvalid` when its sandbox
        cannot be.
        """
        for message in opening[len(run.history.opening) :]:
            run.append(MessageAdded(message=message))
        while not self._drive(run):
            _log.info("job %s goes on in its sandbox or a new one", run.job.id)
        if run.job.status.is_final:
            collect_rest(run, self.place, self.keep)
        return run.job

    def _drive(self, run: Run) -> bool:
        """Drive until an end (True), or until the sandbox had to be changed (False)."""
        try:
            return self._round(run)
        except Stop as stop:  # cancelled while the engine was waited for
            run.end(stop)
            return True

    def _round(self, run: Run) -> bool:
        try:
            if not run.job.status.is_final:
                self._open(run, run.history.place)
                self.loop.drive(run)
        except (LeaseLost, StaleGeneration, StoreUnavailable):
            raise
        except LinkLost as error:
            return not self._rejoin(run, error)
        except SandboxUnavailable as error:
            return not self._replace(run, error)
        except Infrastructure as error:
            self._give_up(run, error)
        return True

    def _open(self, run: Run, place: str = "") -> None:
        """Open a sandbox, and tell the model when it is another than its calls ran in."""
        self.place.open(place)
        if self.place.place == run.history.place:
            return
        is_moved = any(turn.begun for turn in run.history.turns)
        if is_moved:
            run.append(SandboxReplaced(why=str(self._why)))
        run.append(SandboxOpened(place=self.place.place, engine=self.engine))
        if is_moved:
            told = notice("sandbox_replaced", why=self._why, kept=_kept(self.place.restored))
            run.notify(told, f"sandbox:{self.place.place}")

    def _rejoin(self, run: Run, error: LinkLost) -> bool:
        """Let go of a sandbox to which only the link is lost; the next round takes it over."""
        self._rejoined, self._why = self._rejoined + 1, error
        if self._rejoined > _REJOINS:
            return self._replace(run, error)
        self.place.detach()
        return True

    def _replace(self, run: Run, error: SandboxUnavailable) -> bool:
        """Put a new sandbox in the place of a lost one, once; the second time in a row ends it."""
        was_open, again = self.place.is_open, run.history.losses_in_a_row > 0
        self._why = error
        self.place.close()
        if not was_open or again:
            self._give_up(run, error)
            return False
        try:
            self._open(run)
        except StaleGeneration:
            raise
        except (SandboxError, InputInvalid) as failure:  # or an input file that is gone by now
            self._give_up(run, failure)
            return False
        return True

    def _give_up(self, run: Run, error: Exception) -> None:
        """End the job: by its budget if that is what ended it, else as our failure."""
        _log.warning("job %s: %s", run.job.id, error)
        over = next((s for s in spent(run.history, run.clock()) if s.is_over), None)
        if run.history.landing or (over and over.unit == "s"):
            run.end(Stop(str(over or error), reason=FinishReason.BUDGET, kind="BudgetSpent"))
        else:
            run.give_up(error)


def collect_rest(run: Run, place: Workplace, keep: Keep) -> None:
    """Take what a job has made and nobody has taken, if its sandbox still lives.

    A link that breaks meanwhile is made anew a few times.
    """
    if not run.history.uncollected and not run.history.latest:
        return
    why: object = "it does not live any more"
    for is_last in (*[False] * _REJOINS, True):
        try:
            if place.join(run.history.place):
                keep(run, place.sandbox)
                return
            break
        except StaleGeneration:
            raise
        except LinkLost as error:
            why = error
            if not is_last:  # one that is still held is removed when the job is closed
                place.detach()
        except SandboxUnavailable as error:
            why = error
            break
    if run.history.uncollected:
        run.remark(f"files were lost with the sandbox: {why}")


def _kept(names: Sequence[str]) -> str:
    """Say which files a new sandbox was given."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join(["the input files", *names[:_NAMED], *more])


def run_job(
    request: JobRequest,
    settings: Settings,
    *,
    observer: Observer | None = None,
    is_cancelled: Callable[[], bool] = never,
    open_sandbox: Callable[[SandboxSpec], Sandbox] | None = None,
) -> Job:
    """Run one job here and now and return it as it ended.

    Raises `UsageError` and `SpecInvalid` for what was asked; our own failures are in the job. The
    sandbox is gone when this returns or raises.

    Args:
        request: The goal and what it is about.
        settings: What is in force.
        observer: Told of everything as it happens.
        is_cancelled: Asked about ten times a second; True ends the job.
        open_sandbox: Starts a sandbox; by default with the driver that is set.
    """
    job = new_job(request.goal, settings, replay=request.replay, job_id=request.id)
    mounts = assembly.read_mounts(request.mounts, settings)
    files = assembly.check_files(request.files, settings.limits())
    model = assembly.make_model(
        settings, replay=request.replay, record=request.record, is_cancelled=is_cancelled
    )
    spec = settings.spec(job.id, mounts)

    def open_one() -> Sandbox:
        sandbox = open_sandbox(spec) if open_sandbox else assembly.start_sandbox(settings, spec)
        return assembly.furnished(sandbox, files)

    def adopt(place: str) -> Sandbox | None:
        return None if open_sandbox else assembly.adopt_sandbox(settings, spec, place)

    place = Workplace(open_one, settings.max_call_timeout_s, adopt)
    try:
        runner = Runner(
            loop=assembly.build(settings, model, place),
            place=place,
            keep=keeper(_shelf(job, settings), settings),
        )
        run = _claimed(job, observer or Observer(), is_cancelled)
        network, schema = settings.network, settings.answer_schema
        opening = assembly.opening(request.goal, files, mounts, network, schema)
        return runner.work(run, opening)
    finally:
        place.close()
        model.close()


def _claimed(job: Job, observer: Observer, is_cancelled: Callable[[], bool]) -> Run:
    """A hold on a job that nobody else knows of."""
    store = MemoryStore()
    store.create(job)
    generation = store.claim(job.id).generation
    return Run(History(job), store, generation, observer, is_cancelled)


def keeper(shelf: Shelf, settings: Settings) -> Keep:
    """How what a job made is taken out of its sandbox."""
    caps = Caps(files=settings.max_artifacts, total_bytes=settings.max_artifact_bytes)
    return partial(collect, shelf=shelf, caps=caps)


def new_job(
    goal: str, settings: Settings, *, replay: Path | None = None, job_id: str | None = None
) -> Job:
    """A job as it is before anybody works on it. Raises `InputInvalid`."""
    if not goal.strip():
        raise InputInvalid("the goal is empty")
    if job_id is not None and not _ID.fullmatch(job_id):
        raise InputInvalid(f"{job_id!r} cannot be the id of a job")
    return Job(
        id=job_id or new_job_id(),
        goal=goal.strip(),
        model=f"replay of {replay}" if replay else settings.model,
        tools=settings.tools,
        budget=settings.budget(),
    )


def new_job_id() -> str:
    """An id that sorts by time and can stand in names of files and containers."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _shelf(job: Job, settings: Settings) -> Shelf:
    is_private = settings.data_dir is not None  # else it is where somebody works
    return Shelf(artifact_folder(settings) / job.id, is_private=is_private)


def artifact_folder(settings: Settings) -> Path:
    """Where the artefacts of jobs that run here and now are put, each job's in its own folder."""
    return settings.data_dir / "artifacts" if settings.data_dir else Path("caisson-out")
