"""Jobs of five calls, several at a time, by a real worker; and what the engine alone allows.

The worker (`caisson worker`) has the Docker driver, SQLite and a Redis of its own; a model's
replies come from a recording. The engine alone creates, starts and removes containers with the
options of a sandbox, as many at a time.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
from sqlalchemy import update

from bench.engine import Raw
from bench.serve import Samples, serve
from bench.setting import IMAGE, RUN
from bench.spec import spec
from bench.workers import END_S, WORKER, check, running, submit_all
from tests.services import RedisServer
from worker.celery_app import ring
from worker.settings import Settings
from worker.store.base import Store
from worker.store.connections import Database
from worker.store.database import open_store
from worker.store.tables import meta
from worker.testing import say

CALLS = 5
SAMPLES = 40  # of the worker's memory, in a run
TURNS = tuple(
    say(None, ("python_interpreter", {"code": f"x = {number}\nprint(x + 1)"}))
    for number in range(CALLS)
)


class Jobs:
    """A worker that lives as long as this does."""

    def __init__(self) -> None:
        self._stack, self._working, self._pid, self._done = ExitStack(), ExitStack(), 0, 0
        redis = self._stack.enter_context(RedisServer())
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="caisson-bench-"))
        self._given = {
            "data_dir": str(Path(folder, "home")),
            "broker_url": redis.database(),
            "image": os.environ[IMAGE],
            "share_cpus": "1000",  # else the machine's size says how many run at a time
        }
        self._settings = Settings(**self._given)  # type: ignore[arg-type]
        self._store = self._stack.enter_context(closing(open_store(self._settings.database)))
        _rename(self._settings.database, os.environ[RUN])

    def work(self, at_once: int) -> None:
        """Start the worker, with so many slots, in place of the one before."""
        self._working.close()
        own = {f"CAISSON_{name.upper()}": value for name, value in self._given.items()}
        command = [*WORKER, "--concurrency", str(at_once)]
        (worker,) = self._working.enter_context(running(command, own, 1, "ready"))
        self._pid, self._done = worker.pid, 0

    def jobs(self, count: int) -> Samples:
        """Jobs a second; and bytes of the worker's own memory, over the jobs that it has done."""
        found = Samples()
        ids = submit_all(self._settings, self._store, count, TURNS)
        started = time.perf_counter()
        ring(self._settings, count)
        for done in _milestones(self._store, count):
            found.setdefault("done", []).append(float(self._done + done))
            found.setdefault("memory", []).append(_own_bytes(self._pid))
        rate = count / (time.perf_counter() - started)
        self._done += count
        check(self._store, ids)
        return {**found, "rate": [rate]}

    def containers(self, count: int, at_once: int) -> Samples:
        """Containers a second that the engine alone creates, starts and removes."""
        started = time.perf_counter()
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(_container, range(count)))
        return {"rate": [count / (time.perf_counter() - started)]}

    def end(self) -> None:
        self._working.close()
        self._stack.close()


_clients = threading.local()


def _container(_number: int) -> None:
    if not hasattr(_clients, "raw"):
        _clients.raw = Raw(spec())
    raw: Raw = _clients.raw
    raw.remove(raw.start(raw.hardened()))


def _rename(database: str, identity: str) -> None:
    """Give a store the name of the run, by which whatever its worker leaves is found."""
    with closing(Database(database)) as stored:
        stored.write(lambda connection: connection.execute(update(meta).values(identity=identity)))


def _milestones(store: Store, count: int) -> Iterator[int]:
    """Yield how many jobs are done, some times until all are."""
    every, last, until = max(1, count // SAMPLES), 0, time.monotonic() + END_S
    while last < count:
        assert time.monotonic() < until
        time.sleep(0.1)
        left = store.counts()
        done = count - left.claimable - left.held
        if done >= min(count, last + every):
            last = done
            yield done


def _own_bytes(pid: int) -> float:
    """Memory that the processes of a worker share with nobody else."""
    first, total = psutil.Process(pid), 0
    for process in (first, *first.children(recursive=True)):
        try:
            total += process.memory_full_info().uss
        except psutil.NoSuchProcess:  # replaced, having done its share
            continue
    return float(total)


if __name__ == "__main__":
    serve(Jobs(), "caisson")
