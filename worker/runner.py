"""Run a job from its goal to its end: claim it, drive it, replace what breaks, collect, release."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sandbox.base import Sandbox
from sandbox.errors import SandboxError, SandboxUnavailable, StaleGeneration
from sandbox.types import SandboxSpec
from worker import assembly
from worker.artifacts import Caps, collect
from worker.budget import spent
from worker.builtin import Workplace
from worker.errors import Infrastructure, InputInvalid, LeaseLost, Stop
from worker.history import History
from worker.hooks import Observer, Run
from worker.loop import Loop
from worker.messages import FinishReason, Job, Message, MessageAdded, Record, SandboxReplaced
from worker.prompts import notice
from worker.settings import Settings
from worker.store.base import Store
from worker.store.memory import MemoryStore

_log = logging.getLogger(__name__)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


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
    """Drives jobs of one agent. Whatever breaks on our side, a job ends or can be driven again."""

    store: Store
    loop: Loop
    place: Workplace
    folder: Path
    caps: Caps = field(default_factory=Caps)
    observer: Observer = field(default_factory=Observer)
    is_cancelled: Callable[[], bool] = never

    def work(self, job_id: str, opening: tuple[Message, ...] = ()) -> Job:
        """Claim the job and work on it until it ends or must wait.

        `opening` are the first messages of a job that has none. Raises `LeaseLost` when another
        worker took it, `SpecInvalid` when its sandbox cannot be.
        """
        generation = self.store.claim(job_id)
        history = History(*self.store.load(job_id))
        run = Run(history, self.store, generation, self.observer, self.is_cancelled)
        for message in opening[len(history.opening) :]:
            run.append(MessageAdded(message=message))
        self._announce(run)
        while not self._drive(run):
            _log.info("job %s goes on in a new sandbox", job_id)
        if run.job.status.is_final and not run.job.artifacts and self.place.is_open:
            collect(run, self.place.sandbox, self.folder / job_id, self.caps)
        return run.job

    def _announce(self, run: Run) -> None:
        """Tell the model that it is in another sandbox than its last call, if it is."""
        places = [call.place for turn in run.history.turns for call in turn.begun.values()]
        if places and places[-1] != self.place.place and not run.job.status.is_final:
            self._tell_replaced(run, "its worker was interrupted")

    def _tell_replaced(self, run: Run, why: object) -> None:
        run.notify(notice("sandbox_replaced", why=why), f"sandbox:{self.place.place}")

    def _drive(self, run: Run) -> bool:
        """Drive until an end (True), or until the sandbox had to be replaced (False)."""
        try:
            if not run.job.status.is_final:
                self.place.open()
                self.loop.drive(run)
        except (LeaseLost, StaleGeneration):
            raise
        except SandboxUnavailable as error:
            return not self._replace(run, error)
        except Infrastructure as error:
            self._give_up(run, error)
        return True

    def _replace(self, run: Run, error: SandboxUnavailable) -> bool:
        """Put a new sandbox in the place of a lost one, once; the second time in a row ends it."""
        was_open, again = self.place.is_open, run.history.losses_in_a_row > 0
        self.place.close()
        if not was_open or again:
            self._give_up(run, error)
            return False
        run.append(SandboxReplaced(why=str(error)))
        try:
            self.place.replace()
        except (SandboxError, InputInvalid) as failure:  # or an input file that is gone by now
            self._give_up(run, failure)
            return False
        self._tell_replaced(run, error)
        return True

    def _give_up(self, run: Run, error: Exception) -> None:
        """End the job: by its budget if that is what ended it, else as our failure."""
        _log.warning("job %s: %s", run.job.id, error)
        over = next((s for s in spent(run.history, run.clock()) if s.is_over), None)
        if run.history.landing or (over and over.unit == "s"):
            run.end(Stop(str(over or error), reason=FinishReason.BUDGET, kind="BudgetSpent"))
        else:
            run.give_up(error)


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
    job = _new_job(request, settings)
    mounts = assembly.read_mounts(request.mounts, settings)
    files = assembly.check_files(request.files, settings.limits())
    model = assembly.make_model(
        settings, replay=request.replay, record=request.record, is_cancelled=is_cancelled
    )

    def open_one() -> Sandbox:
        spec = settings.spec(job.id, mounts)
        sandbox = open_sandbox(spec) if open_sandbox else assembly.start_sandbox(settings, spec)
        return _with_files(sandbox, files)

    place = Workplace(open_one, settings.max_call_timeout_s)
    try:
        runner = Runner(
            store=MemoryStore(),
            loop=assembly.build(settings, model, place),
            place=place,
            folder=artifact_folder(settings),
            caps=Caps(files=settings.max_artifacts, total_bytes=settings.max_artifact_bytes),
            observer=observer or Observer(),
            is_cancelled=is_cancelled,
        )
        runner.store.create(job)
        opening = assembly.opening(request.goal, files, mounts, network=settings.network)
        return runner.work(job.id, opening)
    finally:
        place.close()
        model.close()


def _with_files(sandbox: Sandbox, files: tuple[assembly.InputFile, ...]) -> Sandbox:
    try:
        assembly.put_files(sandbox, files)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def _new_job(request: JobRequest, settings: Settings) -> Job:
    if not request.goal.strip():
        raise InputInvalid("the goal is empty")
    if request.id is not None and not _ID.fullmatch(request.id):
        raise InputInvalid(f"{request.id!r} cannot be the id of a job")
    return Job(
        id=request.id or new_job_id(),
        goal=request.goal.strip(),
        model=f"replay of {request.replay}" if request.replay else settings.model,
        tools=settings.tools,
        budget=settings.budget(),
    )


def new_job_id() -> str:
    """An id that sorts by time and can stand in names of files and containers."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def artifact_folder(settings: Settings) -> Path:
    """Where the artefacts of jobs are put, each job's in a folder of its own."""
    return settings.data_dir / "artifacts" if settings.data_dir else Path("caisson-out")
