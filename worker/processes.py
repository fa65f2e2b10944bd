"""Celery's pool of processes, which notices soon that one of them was lost, and says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from billiard.common import human_status
from billiard.exceptions import WorkerLostError
from billiard.pool import EX_OK, EX_RECYCLE
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool

from worker.pulse import Lost

_LOOK_S = 0.5  # Celery itself looks every five seconds
_EXITED = "Process %r pid:%r exited with %r"  # billiard's words


class WatchedPool(AsynPool):  # type: ignore[misc]
    """A pool that tells of each process that ended and was not meant to."""

    on_process_down: Callable[[Any], None]
    on_lost: Callable[[Lost], None] = staticmethod(lambda _lost: None)

    @property
    def timers(self) -> dict[Callable[[], None], float]:
        """What is done again and again: siblings that outlive a process hide its end."""
        return {self.maintain_pool: _LOOK_S}

    def _create_process_handlers(self, hub: Any) -> None:  # noqa: ANN401
        super()._create_process_handlers(hub)
        tidy = self.on_process_down

        def on_process_down(process: Any) -> None:  # noqa: ANN401 - it has been waited for
            tidy(process)
            if process.exitcode not in {EX_OK, EX_RECYCLE}:
                self.on_lost(Lost(pid=process.pid, how=human_status(process.exitcode)))

        self.on_process_down = on_process_down


class Processes(TaskPool):  # type: ignore[misc]
    """For the `pool` of a Celery worker; `on_lost` is told in the loop that takes messages."""

    Pool = WatchedPool

    def on_lost(self, tell: Callable[[Lost], None]) -> None:
        self._pool.on_lost = tell


def be_brief() -> None:
    """Leave out of the log what the keeper says in one line, with the job."""
    for name in ("multiprocessing", "celery.worker.request"):
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    given = record.args if isinstance(record.args, tuple) else ()
    return record.msg != _EXITED and not any(isinstance(one, WorkerLostError) for one in given)
