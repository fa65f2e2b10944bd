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

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

import psutil
from pydantic import Field, ValidationError

from sandbox.errors import SandboxError
from sandbox.reaper import Reaped
from worker.broker import EmbeddedBroker
from worker.cancelling import cancel
from worker.celery_app import BELLS, PIPELINE, connect, waiting
from worker.errors import BrokerUnavailable, CaissonError, JobUnknown
from worker.messages import Record
from worker.settings import Settings
from worker.station import Station
from worker.store.base import Store
from worker.tasks import sweep_now

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REAP_EVERY_S = 60.0
FRESH_S = 5.0  # a pulse comes every second
_TICK_S = 0.2
_DRAIN_S = 12.0  # then it is ended by force; its jobs are taken over when their leases are over
_DEAF_S = 15.0  # so long may messages wait beside free slots
_SILENT_S = 20.0  # so long may the consumer's loop stand still while the broker answers
_RESTART_S = 1.0
_LONGEST_RESTART_S = 30.0
_MOST_UNREAD = 1_000_000  # bytes of a pulse without an end


class Pulse(Record):
    """What the consumer says of itself each second."""

    busy: int
    slots: int
    taken: int
    revoked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = Field((), description="jobs whose pipeline was revoked")


@dataclass
class _Process:
    """The consumer, and what it has said."""

    process: subprocess.Popen[bytes]
    pulses: int  # the end of a pipe
    started_at: float = field(default_factory=time.monotonic)
    pulse: Pulse | None = None
    heard_at: float = 0.0
    is_told: bool = False
    unread: bytes = b""

    def listen(self) -> Iterator[Pulse]:
        """Take what it has said since."""
        with suppress(BlockingIOError):
            while said := os.read(self.pulses, 65_536):
                self.unread = (self.unread + said)[-_MOST_UNREAD:]
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            try:
                self.pulse = Pulse.model_validate(json.loads(line))
            except (ValueError, ValidationError):
                continue
            self.heard_at = time.monotonic()
            yield self.pulse

    @property
    def is_fresh(self) -> bool:
        return self.pulse is not None and time.monotonic() - self.heard_at < FRESH_S

    def kill(self) -> None:
        """End it and its pool at once."""
        tree = [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        tree += tree[0].children(recursive=True) if tree else []
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


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
        self._station = Station(settings, store, name=name)
        self.broker = None if settings.broker_url else EmbeddedBroker(settings.home)
        self._consumer: _Process | None = None
        self._signals = 0
        self._stopped_at = 0.0
        self._stop = threading.Event()
        self._must_restart = ""  # why
        self._pause_s, self._next_start = _RESTART_S, 0.0
        self._deafness = Deafness()
        self._answers_since: float | None = None  # the broker, without a break
        self._heard: list[Pulse] = []  # with something to do about it

    def run(self) -> int:
        """Run until a signal; returns the exit code. Raises `BrokerUnavailable` at the start."""
        tending = [
            threading.Thread(target=self._every, args=(work, pause_s), name=name, daemon=True)
            for name, work, pause_s in (
                ("tending", self._tend, self._settings.sweep_s),
                ("reaping", self._reap, REAP_EVERY_S),
            )
        ]
        with self._heeding_signals():
            try:
                if self.broker:
                    self.broker.open()
                self._start()
                for thread in tending:
                    thread.start()
                return self._watch()
            finally:
                self._stop.set()
                self._end()

    # ---- processes: the main thread, with which everything ends that it has started

    def _watch(self) -> int:
        while True:
            self._listen()
            consumer = self._consumer
            if self._signals and (consumer is None or consumer.process.poll() is not None):
                return 0
            if self._signals > 1:
                return 1
            if self._signals and time.monotonic() - self._stopped_at > _DRAIN_S:
                _log.error("the pool does not let go: ending it")
                return 1
            if not self._signals:
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
        elif self._must_restart and not consumer.is_told:
            _log.error("%s: starting the consumer again", self._must_restart)
            self._drain(consumer)
        elif consumer.is_told and time.monotonic() - self._stopped_at > _DRAIN_S:
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
        if not self._must_restart:
            _log.error("%s: starting it again", why)
        os.close(consumer.pulses)
        lived_s = time.monotonic() - consumer.started_at
        is_stable = lived_s > _LONGEST_RESTART_S
        self._pause_s = _RESTART_S if is_stable else min(self._pause_s * 2, _LONGEST_RESTART_S)
        self._next_start = time.monotonic() + self._pause_s
        self._must_restart, self._deafness = "", Deafness()

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
        was_ready = self._consumer.pulse is not None
        for pulse in self._consumer.listen():
            if not was_ready:
                _log.info("ready")
                was_ready = True
            if pulse.revoked or pulse.dropped:
                self._heard.append(pulse)

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
        self._signals += 1
        if self._signals == 1 and self._consumer is not None:
            self._drain(self._consumer)

    def _drain(self, consumer: _Process) -> None:
        consumer.is_told, self._stopped_at = True, time.monotonic()
        with suppress(ProcessLookupError):
            consumer.process.send_signal(signal.SIGTERM)

    def _end(self) -> None:
        if self._consumer is not None:
            self._consumer.kill()
            os.close(self._consumer.pulses)
        if self.broker:
            self.broker.close()

    # ---- tending: threads, because databases, brokers and engines may take their time

    def _every(self, work: Callable[[], None], pause_s: float) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                work()
            except (CaissonError, SandboxError) as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - a fault of ours ends no worker
                _log.exception("a worker's own work failed")
            self._stop.wait(max(0.0, pause_s - (time.monotonic() - started)))

    def _tend(self) -> None:
        self._heed_revoked()
        consumer = self._consumer
        if consumer is None or self._signals:
            return
        if consumer.is_fresh and not self._must_restart:
            seen = self._station.seen().model_copy(update={"slots": self._slots})
            self._store.see(seen)
        try:
            queued = self._look_at_queue()
        except Exception as error:  # noqa: BLE001 - every driver has its own
            _log.warning("the broker cannot be reached: %s", error)
            self._answers_since = None
        else:
            self._judge(consumer, queued)

    def _look_at_queue(self) -> int:
        """Sweep, and count the messages that wait."""
        if self._is_sweeping:
            sweep_now(self._settings, self._store)
        with connect(self._settings) as connection:
            return waiting(connection, BELLS) + waiting(connection, PIPELINE)

    def _judge(self, consumer: _Process, queued: int) -> None:
        """Find a consumer that lives and hears nothing. The broker has just answered us."""
        now = time.monotonic()
        self._answers_since = since = self._answers_since or now
        deaf_s = self._deafness.judge(consumer.pulse, queued, now)
        silent_s = now - max(consumer.heard_at, consumer.started_at, since)
        if deaf_s > _DEAF_S:
            self._must_restart = f"{queued} messages wait and none was taken for {deaf_s:.0f} s"
        elif silent_s > _SILENT_S:
            self._must_restart = f"the consumer has not moved for {silent_s:.0f} s"

    def _heed_revoked(self) -> None:
        """Cancel the jobs of revoked tasks: such a job has the id of its task."""
        while self._heard:
            pulse = self._heard.pop(0)
            for job_id in pulse.revoked:
                with suppress(JobUnknown):  # a task of somebody else, or not begun
                    cancel(self._store, job_id)
            for job_id in pulse.dropped:
                with suppress(JobUnknown):
                    self._store.delivered(job_id)

    def _reap(self) -> None:
        if self._settings.driver != "docker":
            return
        for found in self._station.reap():
            _log.info("%s", said(found))


def said(found: Reaped) -> str:
    how = f"could not be removed: {found.error}" if found.error else "removed"
    return f"sandbox {found.name} of job {found.job} {how} ({found.why})"
