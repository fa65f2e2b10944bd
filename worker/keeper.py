"""The outer half of a worker: keeps a consumer running, and tends what jobs have in common.

The consumer (`worker.consumer`) takes messages and forks a pool; this process never forks, so it
may hold a database and an engine. It starts the consumer again when that ends, or when it takes
nothing although messages wait and slots are free; keeps the embedded broker; sweeps; notes in the
store that this worker lives (only while the consumer's own loop says so); and removes sandboxes
that nobody owns. Reaping is done here, not by a task that any worker might take, because it must
happen where the engine is.

Everything that this process starts ends with it, however it ends: the kernel sees to that. The
first signal lets all jobs go and ends the worker within seconds, the second ends it at once.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import psutil
from pydantic import ValidationError

from sandbox.errors import SandboxError
from sandbox.reaper import Reaped
from worker.broker import EmbeddedBroker
from worker.cancelling import cancel
from worker.celery_app import BELLS, PIPELINE, check_broker, connect, lenient, ring, waiting
from worker.delivery import job_id_of, task_of
from worker.errors import BrokerUnavailable, CaissonError, JobUnknown
from worker.pulse import Lost, Pulse, process_name
from worker.settings import Settings
from worker.store.base import Store, WorkerSeen
from worker.tasks import sweep_now

if TYPE_CHECKING:
    from worker.station import Station

T = TypeVar("T")

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REAP_EVERY_S = 60.0
FRESH_S = 5.0  # a pulse comes every second
SEEN_WITHIN_S = 10.0  # a worker that was not seen for so long does not consume
BEAT_S = 2.0  # a worker says in the store that it lives
_TICK_S = 0.2
_HEED_S = 1.0  # revocations
_JOIN_S = 2.0  # then what a thread still does is left undone
_BROKER_WAIT_S = 15.0  # for the broker of a worker that is just ending to be gone
_DRAIN_S = 12.0  # then it is ended by force; its jobs are taken over when their leases are over
_DEAF_S = 15.0  # so long may messages wait beside free slots
_SILENT_S = 20.0  # so long may the consumer's loop stand still while the broker answers
_RESTART_S = 1.0
_SOONEST_S = 0.02  # after a lease is over
_LONGEST_RESTART_S = 30.0
_MOST_UNREAD = 1_000_000  # bytes of a pulse without an end


@dataclass
class Deafness:
    """Judges whether a consumer hears: messages wait, slots are free, and it takes none."""

    since: float | None = None
    taken: int = -1

    def judge(self, pulse: Pulse | None, queued: int, now: float) -> float:
        """For how many seconds it has been deaf by now."""
        if pulse is None or not queued or pulse.busy >= pulse.slots or pulse.taken != self.taken:
            self.since = None
            self.taken = pulse.taken if pulse else -1
            return 0.0
        self.since = self.since if self.since is not None else now
        return now - self.since


@dataclass
class _Process:
    """The consumer, and what it has said."""

    process: subprocess.Popen[bytes]
    pulses: int  # the end of a pipe
    started_at: float = field(default_factory=time.monotonic)
    pulse: Pulse | None = None
    heard_at: float = 0.0
    told_at: float | None = None  # to let go
    is_ready: bool = False  # that it consumes is in the store
    fault: str = ""  # why it is to be started again
    deafness: Deafness = field(default_factory=Deafness)
    unread: bytes = b""

    def listen(self) -> Iterator[Pulse]:
        """Take what it has said since."""
        with suppress(BlockingIOError):
            while said := os.read(self.pulses, 65_536):
                self.unread = (self.unread + said)[-_MOST_UNREAD:]
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            try:
                self.pulse = Pulse.model_validate_json(line)
            except ValidationError:
                continue
            self.heard_at = time.monotonic()
            yield self.pulse

    @property
    def is_fresh(self) -> bool:
        return self.pulse is not None and time.monotonic() - self.heard_at < FRESH_S

    def drain(self) -> None:
        """Let it go, once: at the second signal it would drop its jobs."""
        if self.told_at is None:
            self.told_at = time.monotonic()
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    @property
    def is_stubborn(self) -> bool:
        return self.told_at is not None and time.monotonic() - self.told_at > _DRAIN_S

    def kill(self) -> None:
        """End it and its pool at once."""
        tree = [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        tree += tree[0].children(recursive=True) if tree else []
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@dataclass
class Wanted(Generic[T]):
    """What a thread is to see to, such as jobs; another thread adds to it."""

    open: dict[T, None] = field(default_factory=dict)

    def add(self, more: tuple[T, ...]) -> None:
        self.open.update(dict.fromkeys(more))

    def see_to(self, work: Callable[[T], object]) -> None:
        """Do the work for each; when it raises, that one is seen to the next time."""
        while self.open:
            one = next(iter(self.open))
            del self.open[one]  # first: it may be wanted again meanwhile
            try:
                with suppress(JobUnknown):
                    work(one)
            except CaissonError:
                self.open[one] = None
                raise


class Keeper:
    """One worker, from its start to its end.

    Args:
        settings: What is in force.
        store: Where the jobs are.
        name: Names this worker among all.
        slots: Jobs at a time.
        is_sweeping: Whether to look for jobs that have no bell; else `caisson beat` must run.
        options: More arguments for the consumer.
    """

    def __init__(  # noqa: PLR0913 - what a worker is, once
        self,
        settings: Settings,
        store: Store,
        name: str,
        slots: int,
        *,
        is_sweeping: bool = True,
        options: tuple[str, ...] = (),
    ) -> None:
        self._settings, self._store = settings, store
        self._name, self._slots, self._options = name, slots, options
        self._is_sweeping = is_sweeping
        self.broker = None if settings.broker_url else EmbeddedBroker(settings.home)
        self._consumer: _Process | None = None
        self._signals = 0
        self._stop = threading.Event()
        self._pause_s, self._next_start = _RESTART_S, 0.0
        self._answers_since: float | None = None  # the broker, without a break
        self._engine_fault = ""
        self._revoked, self._dropped = Wanted[str](), Wanted[str]()
        self._lost = Wanted[Lost]()

    def __enter__(self) -> Self:
        """Return once the broker answers. Raises `BrokerUnavailable`."""
        until = time.monotonic() + _BROKER_WAIT_S
        while True:
            if self.broker:
                self.broker.open()
            try:
                check_broker(self._settings)
            except BrokerUnavailable:  # another worker may just be ending, and its broker with it
                if self.broker is None or time.monotonic() > until:
                    self.__exit__()
                    raise
                time.sleep(_TICK_S)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        if self.broker:
            self.broker.close()

    def run(self) -> bool:
        """Run until a signal; returns whether all jobs were let go."""
        threads = self._threads()
        with self._heeding_signals(), self._spares():
            try:
                for thread in threads:
                    thread.start()
                return self._watch()
            finally:
                self._stop.set()
                self._end_consumer()
                self._join(threads)

    def _spares(self) -> AbstractContextManager[None]:
        from worker.spares import kept  # noqa: PLC0415 - the engine's client is slow to load

        spec = self._station.usual_spec()
        return kept(self._settings, spec, self._slots, lambda: self._signals > 1)

    def _threads(self) -> list[threading.Thread]:
        """One for each thing that may have to wait, so that nothing else waits for it."""
        tending: dict[str, tuple[Callable[[], float | None], float]] = {
            "heeding": (self._heed_revoked, _HEED_S),
            "freeing": (self._free_lost, _TICK_S),
            "seeing": (self._see, BEAT_S),
            "judging": (self._look_at_queue, BEAT_S),
            "reaping": (self._reap, REAP_EVERY_S),
        }
        if self._is_sweeping:
            tending["sweeping"] = (self._sweep, self._settings.sweep_s)
        return [
            threading.Thread(target=self._every, args=each, name=name, daemon=True)
            for name, each in tending.items()
        ]

    @staticmethod
    def _join(threads: list[threading.Thread]) -> None:
        """Wait for them: what they use is closed next."""
        until = time.monotonic() + _JOIN_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    # ---- processes: the main thread, with which everything ends that it has started

    def _watch(self) -> bool:
        while True:
            self._listen()
            consumer = self._consumer
            if self._signals and (consumer is None or consumer.process.poll() is not None):
                return True
            if self._signals > 1:
                return False
            if self._signals and consumer is not None:
                if consumer.told_at is None:
                    _log.info("stopping: jobs are handed over; a second signal drops them")
                consumer.drain()
                if consumer.is_stubborn:
                    _log.error("the pool does not let go: ending it")
                    return False
            else:
                self._keep()
            self._stop.wait(_TICK_S)

    def _keep(self) -> None:
        self._keep_broker()
        consumer = self._consumer
        if consumer is None:
            if time.monotonic() >= self._next_start:
                self._start()
        elif (code := consumer.process.poll()) is not None:
            self._again(f"the consumer has ended ({code})")
        elif consumer.fault and consumer.told_at is None:
            _log.error("%s: starting the consumer again", consumer.fault)
            consumer.drain()
        elif consumer.is_stubborn:
            consumer.kill()

    def _keep_broker(self) -> None:
        if self.broker is None:
            return
        try:
            if self.broker.keep():
                _log.warning("the broker was started here")
        except BrokerUnavailable as error:
            _log.error("%s", error)

    def _again(self, why: str) -> None:
        """Start the consumer again in a moment, which is longer each time when it ends at once."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        if not consumer.fault:
            _log.error("%s: starting it again", why)
        os.close(consumer.pulses)
        lived_s = time.monotonic() - consumer.started_at
        is_stable = lived_s > _LONGEST_RESTART_S
        self._pause_s = _RESTART_S if is_stable else min(self._pause_s * 2, _LONGEST_RESTART_S)
        self._next_start = time.monotonic() + self._pause_s

    def _start(self) -> None:
        theirs: int
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        try:
            process = subprocess.Popen(
                self._command(theirs),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs,),
                start_new_session=True,  # Ctrl-C comes to it from here
            )
        finally:
            os.close(theirs)
        self._consumer = _Process(process, ours)

    def _command(self, pulses: int) -> list[str]:
        numbers = {"--slots": self._slots, "--pulse": pulses, "--keeper": os.getpid()}
        given = [text for name, number in numbers.items() for text in (name, str(number))]
        code = "from worker.consumer import main; main()"
        start = [sys.executable, "-P", "-c", code, "--name", self._name]
        return [*start, *given, *self._options]

    def _listen(self) -> None:
        if self._consumer is None:
            return
        for pulse in self._consumer.listen():
            self._revoked.add(pulse.revoked)
            self._dropped.add(pulse.dropped)
            self._lost.add(pulse.lost)

    # ---- ending

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._heed) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heed(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signals += 1  # `_watch` acts upon it, when no consumer is half started

    def _end_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.kill()
            os.close(self._consumer.pulses)

    # ---- tending: threads, because databases, brokers and engines may take their time

    @cached_property
    def _station(self) -> Station:
        from worker.station import Station  # noqa: PLC0415

        return Station(self._settings, self._store, name=self._name)

    def _every(self, work: Callable[[], float | None], pause_s: float) -> None:
        """Do the work again and again, sooner than usual where it says so (in seconds)."""
        while not self._stop.is_set():
            started, sooner_s = time.monotonic(), None
            try:
                sooner_s = work()
            except (CaissonError, SandboxError) as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - a fault of ours ends no worker
                _log.exception("a worker's own work failed")
            rest_s = pause_s - (time.monotonic() - started)
            self._stop.wait(max(0.0, rest_s if sooner_s is None else min(rest_s, sooner_s)))

    def _heed_revoked(self) -> None:
        """Cancel the jobs of revoked tasks, and forget ends that nobody waits for any more."""
        self._revoked.see_to(self._cancel)
        self._dropped.see_to(self._store.delivered)

    def _cancel(self, job_id: str) -> None:
        task_id = task_of(self._store.order(job_id).deliver)
        if task_id is not None and job_id_of(task_id) == job_id:  # else it is no task's
            cancel(self._store, job_id)

    def _free_lost(self) -> None:
        """Let others go on at once with the jobs of processes that are gone."""
        self._lost.see_to(self._free)

    def _free(self, lost: Lost) -> None:
        if psutil.pid_exists(lost.pid):  # by now a later process has its number, and maybe a job
            return
        jobs = self._store.lose(process_name(self._name, lost.pid))
        for job_id in jobs:
            _log.warning("job %s: its process %d was lost: %s", job_id, lost.pid, lost.how)
        if not jobs:
            _log.warning("process %d, which had no job, was lost: %s", lost.pid, lost.how)
        elif not self._signals:
            self._wake()

    def _wake(self) -> None:
        try:
            ring(self._settings)
        except BrokerUnavailable as error:  # the sweep rings
            _log.warning("%s", error)

    def _see(self) -> float | None:
        """Say that this worker lives, as long as its consumer does.

        A new consumer is ready once that is stored: from then on checks find it.
        """
        consumer = self._consumer
        if consumer is None or not consumer.is_fresh or consumer.fault or self._signals:
            return _TICK_S
        self._store.see(self._seen())
        if not consumer.is_ready:
            consumer.is_ready = True
            _log.info("ready")
        return None

    def _seen(self) -> WorkerSeen:
        """What this worker may give; without an engine it may give nothing, but it lives."""
        try:
            seen = self._station.seen()
        except SandboxError as error:
            if self._engine_fault != str(error):
                _log.warning("jobs wait for the engine: %s", error)
            self._engine_fault = str(error)
            seen = WorkerSeen(name=self._name, host=socket.gethostname())
        else:
            self._engine_fault = ""
        return seen.model_copy(update={"slots": self._slots})

    def _sweep(self) -> float | None:
        """Look for jobs without a bell; returns when to look again if a lease is over before."""
        if self._signals:
            return None
        with lenient(self._forget_answers):
            sweep_now(self._settings, self._store)
        lapses_in_s = self._store.counts().lapses_in_s
        return None if lapses_in_s is None else max(_SOONEST_S, lapses_in_s + _SOONEST_S)

    def _look_at_queue(self) -> None:
        """Judge the consumer by the messages that wait."""
        consumer = self._consumer
        if consumer is None or self._signals:
            return
        with lenient(self._forget_answers):
            with connect(self._settings) as connection:
                queued = waiting(connection, BELLS) + waiting(connection, PIPELINE)
            self._judge(consumer, queued)

    def _forget_answers(self) -> None:
        self._answers_since = None

    def _judge(self, consumer: _Process, queued: int) -> None:
        """Find a consumer that lives and hears nothing. The broker has just answered us."""
        now = time.monotonic()
        self._answers_since = since = self._answers_since or now
        deaf_s = consumer.deafness.judge(consumer.pulse, queued, now)
        silent_s = now - max(consumer.heard_at, consumer.started_at, since)
        if deaf_s > _DEAF_S:
            consumer.fault = f"{queued} messages wait and none was taken for {deaf_s:.0f} s"
        elif silent_s > _SILENT_S:
            consumer.fault = f"the consumer has not moved for {silent_s:.0f} s"

    def _reap(self) -> None:
        if self._settings.driver != "docker":
            return
        for found in self._station.reap():
            _log.info("%s", said(found))


def said(found: Reaped) -> str:
    how = f"could not be removed: {found.error}" if found.error else "removed"
    return f"sandbox {found.name} of job {found.job} {how} ({found.why})"
