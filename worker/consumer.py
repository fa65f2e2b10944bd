"""The Celery half of a worker: takes bells, and has a pool of processes that act on them.

It is a process of its own under the keeper (`worker.keeper`), which starts it again when it ends
or stops taking messages. Before its pool is forked it opens no database and no engine: SQLite's
locks, and the sockets of all clients, do not survive a fork.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from celery import bootsteps, platforms, signals
from celery.apps.worker import Worker as CeleryWorker
from celery.worker import state
from celery.worker.consumer import Consumer, Tasks
from kombu.connection import Connection

from worker import draining, redis_transport
from worker.celery_app import BELLS, COLLECT, FOREIGN, PIPELINE, app, in_force
from worker.delivery import JOB_HEADER, job_id_of
from worker.logs import log_to_stdout
from worker.processes import Processes, be_brief
from worker.pulse import Lost, Pulse
from worker.spares import belong_to

PULSE_S = 1.0
_log = logging.getLogger(__name__)
_MOST_IDS = 15  # of each kind, each of at most 100 bytes, in one pulse


class Worker(CeleryWorker):  # type: ignore[misc]
    """Celery's worker, which lets go of its jobs at the first signal and dies at the second."""

    def install_platform_tweaks(self, worker: Any) -> None:  # noqa: ANN401 - the signature is Celery's
        super().install_platform_tweaks(worker)
        for name in ("SIGTERM", "SIGINT", "SIGQUIT"):
            platforms.signals[name] = self._heed
        platforms.signals.ignore("SIGHUP")  # Celery's own would start it anew, outside the keeper

    def _heed(self, *_: object) -> None:
        if draining.is_draining():
            os._exit(1)  # the kernel ends the pool with it
        draining.begin()
        state.should_stop = os.EX_OK


class SwiftConsumer(Consumer):  # type: ignore[misc]
    """Celery's consumer, which tries to connect every second or two instead of ever more rarely.

    A broker is back soon: the embedded one within a second.
    """

    def ensure_connected(self, conn: Connection) -> Any:  # noqa: ANN401
        pauses = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}
        patient = partial(conn.ensure_connection, **pauses)
        conn.ensure_connection = patient  # type: ignore[method-assign]
        return super().ensure_connected(conn)


class Heart(bootsteps.StartStopStep):  # type: ignore[misc]
    """Tells the keeper each second how it stands, from the very loop that takes messages."""

    requires = (Tasks,)
    descriptor: int | None = None

    def __init__(self, parent: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(parent, **options)
        self._timer: Any = None
        self._dropped: list[str] = []
        self._told: set[str] = set()
        self._lost: list[Lost] = []
        signals.task_revoked.connect(self._on_revoked, weak=False)

    def include_if(self, parent: Any) -> bool:  # noqa: ANN401
        del parent
        return self.descriptor is not None

    def start(self, parent: Consumer) -> None:
        def tell(lost: Lost) -> None:
            self._lost.append(lost)
            parent.timer.call_after(0, self._beat, (parent,))

        parent.pool.on_lost(tell)
        parent.timer.call_after(0, self._beat, (parent,))  # once the loop runs
        self._timer = parent.timer.call_repeatedly(PULSE_S, self._beat, (parent,))

    def stop(self, parent: Consumer) -> None:
        del parent
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self, consumer: Consumer) -> None:
        # A task that is at work may be about to make its job: it is told until that is over.
        doing = {request.id for request in state.reserved_requests}
        revoked = sorted(set(state.revoked) - self._told, key=doing.__contains__)[:_MOST_IDS]
        pulse = Pulse(
            busy=len(state.reserved_requests),
            slots=consumer.pool.num_processes,
            taken=state.all_total_count[0],
            revoked=tuple(map(job_id_of, revoked)),
            dropped=tuple(self._dropped[:_MOST_IDS]),
            lost=tuple(self._lost[:_MOST_IDS]),
        )
        with suppress(BlockingIOError):  # the keeper is not looking; the next one says the same
            os.write(cast("int", self.descriptor), pulse.line())
            self._told.intersection_update(state.revoked)
            self._told.update(set(revoked) - doing)
            del self._dropped[:_MOST_IDS]
            del self._lost[:_MOST_IDS]

    def _on_revoked(self, request: Any = None, **_: object) -> None:  # noqa: ANN401
        """A pipeline that was revoked needs not be told any more."""
        job_id = getattr(request, JOB_HEADER, "")
        if job_id and getattr(request, "task", None) == COLLECT:
            self._dropped.append(str(job_id))


app.steps["consumer"].add(Heart)
redis_transport.install()


def main() -> None:
    """Run until told to stop. For the keeper, which knows the arguments."""
    options = _options()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until there is something to let go of
    platforms.set_pdeathsig("SIGKILL")
    if os.getppid() != options.keeper:
        sys.exit(1)  # it is gone already
    log_to_stdout(as_json=options.json)
    be_brief()
    Heart.descriptor = options.pulse
    os.set_blocking(options.pulse, False)
    _import_tasks(options)
    belong_to(options.keeper)
    worker = app.Worker(
        hostname=f"{options.name}@{os.uname().nodename}",
        concurrency=options.slots,
        pool=Processes,
        queues=[BELLS, PIPELINE, *([FOREIGN] if options.include else [])],
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
    )
    # The collector would else touch, and so copy, all that the pool's processes share with this
    # one, and seldom run in full: of so much that lives, a quarter more is waited for.
    gc.collect()
    gc.freeze()
    worker.start()
    sys.exit(worker.exitcode)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("caisson worker")
    parser.add_argument("--name", required=True)
    for number in ("--slots", "--pulse", "--keeper"):
        parser.add_argument(number, type=int, required=True)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _import_tasks(options: argparse.Namespace) -> None:
    """Load all that jobs need, once for all processes of the pool."""
    from worker import builtin, tasks  # noqa: PLC0415 - it imports this package's application

    tasks.named(options.name)
    builtin.prepare()
    if in_force().model:  # it takes half a second, and jobs of recordings do without
        importlib.import_module("worker.models.openai_chat")
    if options.include:
        sys.path.insert(0, str(Path.cwd()))
    for module in options.include:
        importlib.import_module(module)
