"""One worker process's way of doing queued jobs: claim, adopt or open, drive, give back.

Whatever happens here to a job, one of three things is true afterwards: it is closed with its true
end, it was given back, or its lease runs out and another worker goes on with it. A sandbox is
removed only after its job is closed; until then it is left to whoever claims the job next.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from sandbox.base import Sandbox
from sandbox.engine import Engine
from sandbox.errors import (
    EngineUnavailable,
    SandboxUnavailable,
    SpecInvalid,
    StaleGeneration,
)
from sandbox.lending import Borrower
from sandbox.reaper import Reaped, reap
from sandbox.types import Mount, SandboxSpec
from worker import admission, assembly
from worker.artifacts import Shelf
from worker.assembly import InputFile
from worker.builtin import Workplace
from worker.checkpoint import CheckpointHook
from worker.errors import (
    BlobMissing,
    Handover,
    InputInvalid,
    LeaseLost,
    SchemaMismatch,
    Stop,
    StoreUnavailable,
    UsageError,
)
from worker.history import History
from worker.hooks import Observer, Run
from worker.lease import Lease, clock, never
from worker.messages import Ended, FinishReason, JobError, Order, Status
from worker.models.base import Model
from worker.postmortem import WorkersLost, post_mortem
from worker.runner import Runner, collect_rest, keeper
from worker.settings import Settings
from worker.store.base import Claim, Store, WorkerSeen
from worker.store.blobs import Blobs

T = TypeVar("T")

_log = logging.getLogger(__name__)
_ENGINE_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Worked:
    """Which job was worked on, and how it stood afterwards."""

    job_id: str
    status: Status


@dataclass
class Station:
    """Does jobs, one at a time.

    Args:
        settings: The worker's own; what a job brings is laid over them.
        store: Where the jobs are.
        name: Names this worker among all; never used twice.
        is_draining: Whether it is to let go of its jobs.
        observer: Told of everything that happens to jobs here.
        spares: Where sandboxes can be had that are ready.
    """

    settings: Settings
    store: Store
    name: str
    is_draining: Callable[[], bool] = never
    observer: Observer = field(default_factory=Observer)
    spares: Borrower | None = None
    _engine_id: str = field(default="", init=False)

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.settings.home / "blobs")

    def engine_id(self) -> str:
        """Identity of the engine in use; raises `EngineUnavailable` when it is away now."""
        if self.settings.driver != "process":
            with closing(Engine()) as engine:  # a socket of this host has been tried by now
                if not (self._engine_id and engine.url.startswith("unix:")):
                    self._engine_id = engine.identity()
        return self._engine_id

    def seen(self) -> WorkerSeen:
        """What this worker may give to sandboxes."""
        own = self.settings
        return WorkerSeen(
            name=self.name,
            host=socket.gethostname(),
            engine=self.engine_id(),
            slots=own.concurrency or 1,
            memory_bytes=own.share_memory or admission.share_of_memory(),
            cpus=own.share_cpus or admission.share_of_cpus(),
            free_bytes=admission.free_memory(),
        )

    def usual_spec(self) -> SandboxSpec:
        """What the sandbox of a job is made from that asks for nothing unusual."""
        return _stored(self.settings.spec(), self.store, 1, self.settings.linger_s)

    def work_next(self) -> Worked | None:
        """Take the job that is due and work on it, until it ends or is another's.

        None: there was nothing to do, or it is to let go. Raises `StoreUnavailable`, and
        `EngineUnavailable` before anything was claimed.
        """
        worker, asked_at = self.seen(), clock()
        # Asked last: to look at the engine takes time, in which others may have let go of a job.
        if self.is_draining():
            return None
        claim = self.store.claim_next(worker, self.settings.lease_s)
        if claim is None:
            return None
        with Lease(self.store, claim, self.settings.lease_s, asked_at, self.is_draining) as lease:
            return Worked(claim.job_id, _Shift(self, claim, lease, worker.engine).work())

    def reap(self, *, dry_run: bool = False) -> list[Reaped]:
        """Remove the sandboxes on this engine that nobody owns, and files left half written.

        Raises `EngineUnavailable`.
        """
        if not dry_run:
            self.blobs.tidy()
        with closing(Engine()) as engine:
            return reap(engine, self.store, dry_run=dry_run)


@dataclass
class _Shift:
    """One claim, from its beginning to its end."""

    station: Station
    claim: Claim
    lease: Lease
    engine: str = ""
    place: Workplace = field(init=False)

    def work(self) -> Status:
        started, job_id = time.monotonic(), self.claim.job_id
        _log.info("job %s: begun%s", job_id, _said_losses(self.claim))
        self.place = self._workplace()
        try:
            status = self._work()
        except (LeaseLost, StaleGeneration) as error:
            _log.warning("job %s: let go: %s", job_id, error)
            return Status.RUNNING
        except (StoreUnavailable, SchemaMismatch) as error:  # a newer worker can read its events
            _log.warning("job %s: left until its lease is over: %s", job_id, error)
            return Status.RUNNING
        finally:
            self.place.detach()  # nothing is open any more, unless the job goes on elsewhere
        _log.info("job %s: %s (%.1f s)", job_id, status, time.monotonic() - started)
        return status

    @cached_property
    def run(self) -> Run:
        return Run(
            History(*self.station.store.load(self.claim.job_id)),
            self.station.store,
            self.claim.generation,
            self.station.observer,
            self.lease.is_cancelled,
            self.lease.check,
            is_patient=True,
            clock=self.lease.now,
        )

    @cached_property
    def order(self) -> Order:
        return self.station.store.order(self.claim.job_id)

    @cached_property
    def settings(self) -> Settings:
        return self.station.settings.overlaid(self.order.options)

    def _work(self) -> Status:
        try:
            if self.run.job.status.is_final:  # the one that ended it did not get to closing it
                collect_rest(self.run, self.place, keeper(self._shelf(), self.settings))
            elif self.claim.losses >= self.station.settings.max_losses:
                self._bury()
            else:
                self._drive()
        except Handover:
            return self._release()
        except SchemaMismatch as error:
            self._bury_unread(error)
        except (LeaseLost, StaleGeneration, StoreUnavailable):
            raise
        except (UsageError, SpecInvalid) as error:  # what was asked cannot be done here
            self.run.end(Stop(str(error), kind=type(error).__name__))
        except Exception as error:  # noqa: BLE001 - no job may stay as if it were worked on
            _log.exception("job %s: it cannot be worked on", self.claim.job_id)
            self.run.give_up(error)
        return self._close()

    def _drive(self) -> None:
        self.place.max_timeout_s = self.settings.max_call_timeout_s
        replay = self.station.blobs.path(self.order.replay) if self.order.replay else None
        with closing(self._model(replay)) as model:
            keep = keeper(self._shelf(), self.settings)
            more = [CheckpointHook(self.place, keep)]
            loop = assembly.build(self.settings, model, self.place, more)
            opening = assembly.opening(
                self.run.job.goal,
                self._inputs(),
                self._mounts(),
                network=self.settings.network,
                answer_schema=self.settings.answer_schema,
            )
            Runner(loop, self.place, keep, self.engine).work(self.run, opening)

    def _model(self, replay: Path | None) -> Model:
        """The model of the job. What is missing for it is missing here, and not in the job."""
        try:
            return assembly.make_model(
                self.settings, replay=replay, is_cancelled=self.lease.is_cancelled
            )
        except InputInvalid as error:
            if replay:
                raise
            who = f"worker {self.station.name} on host {socket.gethostname()}"
            raise InputInvalid(f"{who} cannot ask a model as it is set up: {error}") from error

    def _release(self) -> Status:
        self.lease.leave()
        return self.station.store.release(self.claim.job_id, generation=self.claim.generation)

    def _close(self) -> Status:
        """Close the job, then remove its sandbox: nobody waits for that."""
        status = self._release()
        self.place.close()
        if self.claim.generation > 1:
            self._clear()
        return status

    def _bury(self) -> None:
        store, job_id = self.station.store, self.claim.job_id
        cap = self.station.settings.max_losses
        attempts = store.attempts(job_id)
        why = post_mortem(*store.load(job_id), attempts, self.claim.losses, cap)
        self.run.give_up(WorkersLost(why))

    def _bury_unread(self, error: SchemaMismatch) -> None:
        """End a job whose events nobody here can read; but first leave it to newer workers."""
        if self.claim.losses < self.station.settings.max_losses:
            raise error
        why = JobError(type=type(error).__name__, message=str(error))
        end = Ended(
            at=self.lease.now(), status=Status.DEAD, finish_reason=FinishReason.FAILED, error=why
        )
        self.lease.check()
        self.station.store.append(self.claim.job_id, end, generation=self.claim.generation)

    # ---- its files

    def _shelf(self) -> Shelf:
        folder = self.station.settings.home / "artifacts" / self.claim.job_id
        return Shelf(folder, self.station.blobs, is_private=True)

    def _mounts(self) -> tuple[Mount, ...]:
        return assembly.read_mounts(map(Path, self.order.mounts), self.settings)

    def _inputs(self) -> list[InputFile]:
        blobs = self.station.blobs
        return [
            InputFile(path=blobs.path(i.sha256, i.size), name=i.name, size=i.size, header=i.header)
            for i in self.order.inputs
        ]

    def _restore(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Put back what the job had made, the latest first; the rest of the space is for more."""
        room = sandbox.spec.limits.workspace_size_bytes
        given = sum(file.size for file in self._inputs())
        return assembly.put_back(sandbox, self._made(), min(room // 2, room - given))

    def _made(self) -> Iterator[InputFile]:
        blobs = self.station.blobs
        for made in reversed(self.run.history.latest.values()):
            with suppress(BlobMissing):  # it can be made again
                path = blobs.path(made.sha256, made.size)
                yield InputFile(path=path, name=made.source, size=made.size)

    # ---- its sandbox

    def _workplace(self) -> Workplace:
        def open_one() -> Sandbox:
            spec, spares = self._spec(), self.station.spares
            sandbox = self._patiently(lambda: assembly.start_sandbox(self.settings, spec, spares))
            return assembly.furnished(sandbox, self._inputs())

        def adopt(place: str) -> Sandbox | None:
            spec = self._spec()
            found = self._patiently(lambda: assembly.adopt_sandbox(self.settings, spec, place))
            self._clear(but=place if found else "")
            return found

        longest_s = self.station.settings.max_call_timeout_s
        return Workplace(open_one, longest_s, adopt, self._restore)

    def _spec(self) -> SandboxSpec:
        spec = self.settings.spec(self.claim.job_id, self._mounts())
        return _stored(spec, self.station.store, self.claim.generation, self.settings.linger_s)

    def _patiently(self, start: Callable[[], T]) -> T:
        """Wait for an engine that is away: it may only be starting anew."""
        until = time.monotonic() + self.station.settings.engine_wait_s
        while True:
            try:
                return start()
            except EngineUnavailable as error:
                if time.monotonic() > until:
                    raise
                _log.warning("job %s waits for the engine: %s", self.claim.job_id, error)
            self._check()
            time.sleep(_ENGINE_POLL_S)

    def _check(self) -> None:
        """Raise whatever ends the waiting; a job that has ended only has its files to wait for."""
        if self.run.job.status.is_final:
            self.lease.check()
        else:
            self.run.check_cancelled()

    def _clear(self, but: str = "") -> None:
        """Remove what earlier workers have left of the job; a place is the start of an id."""
        if self.station.settings.driver != "docker":  # no job brings one of its own
            return
        try:
            with closing(Engine()) as engine:
                for found in engine.labelled(f"caisson.job={self.claim.job_id}"):
                    self.lease.check()
                    if self._is_ours(found["Labels"]) and not (but and found["Id"].startswith(but)):
                        engine.remove(found["Id"])
        except SandboxUnavailable as error:  # the reaper comes again
            _log.warning("job %s: left to the reaper: %s", self.claim.job_id, error)

    def _is_ours(self, labels: Mapping[str, str]) -> bool:
        """Whether a container is of this store's job of that id, and not of a later claim."""
        is_later = int(labels["caisson.generation"]) > self.claim.generation
        return labels.get("caisson.store") == self.station.store.identity and not is_later


def _stored(spec: SandboxSpec, store: Store, generation: int, linger_s: float) -> SandboxSpec:
    """The spec of a job that is in a store, and may be taken over."""
    own = {"generation": generation, "store": store.identity, "linger_s": linger_s}
    return spec.model_copy(update=own)


def _said_losses(claim: Claim) -> str:
    if not claim.losses:
        return ""
    return f" again, after {claim.losses} lost worker{'s' if claim.losses > 1 else ''}"
