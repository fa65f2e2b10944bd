"""Many tiny jobs at once: each claimed exactly once, and how many a second.

    python -m bench.queue [--jobs N] [--workers N] [--driver process|docker] [--postgres]

Real workers (`caisson worker`, one slot each), a real Redis, SQLite or PostgreSQL. A tiny job is a
recording of one reply: all of a job is done but for a model's thinking and calls (claim, sandbox,
six events, close). With the process driver the sandbox is a Python process, with the docker driver
a container. "idle bells" are bells that find no job. Beside it, the same number of Celery's own
tasks that do nothing, with as many processes on the same Redis, results stored.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from celery import Celery

from bench.workers import END_S, WORKER, check, running, submit_all, wait
from tests.services import PostgresServer, RedisServer
from worker.celery_app import BELLS, connect, ring, waiting
from worker.settings import Settings
from worker.store.database import open_store

BROKER = "BENCH_BROKER"

bare = Celery("bare", set_as_current=False)
if BROKER in os.environ:
    bare.conf.update(
        broker_url=os.environ[BROKER],
        result_backend=os.environ[BROKER],
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )


@bare.task(name="bench.queue.nothing")
def nothing() -> None:
    """Do nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--driver", choices=("process", "docker"), default="process")
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        database = stack.enter_context(PostgresServer()) if options.postgres else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="caisson-bench-")))
        kind = "PostgreSQL" if database else "SQLite"
        settings = {
            "data_dir": str(folder / "home"),
            "broker_url": redis.database(),
            "driver": options.driver,
            "allow_unisolated": "true",
            "lease_s": "60",
            "memory": "64m",
            "share_cpus": "1000",  # admission is measured elsewhere
        }
        if database:
            settings["database_url"] = database.database()
        print(f"{options.workers} workers, {options.jobs} jobs, {options.driver} driver, {kind}")
        measure_jobs(settings, options)
        measure_bare(redis.database(), options)


def measure_jobs(given: dict[str, str], options: argparse.Namespace) -> None:
    settings = Settings(**given)  # type: ignore[arg-type]
    store = open_store(settings.database)
    try:
        started = time.monotonic()
        jobs = submit_all(settings, store, options.jobs)
        report("submitted", options.jobs, time.monotonic() - started)
        own = {f"CAISSON_{name.upper()}": value for name, value in given.items()}
        with running([*WORKER, "--concurrency", "1"], own, options.workers, "ready"):
            started = time.monotonic()
            ring(settings, options.jobs)
            wait(lambda: all(store.get(job).job.status.is_final for job in jobs[::-1]))
            report("done", options.jobs, time.monotonic() - started)
            started = time.monotonic()
            ring(settings, options.jobs)
            with connect(settings) as connection:
                wait(lambda: not waiting(connection, BELLS))
            report("idle bells", options.jobs, time.monotonic() - started)
        check(store, jobs)
        print(f"  each of {len(jobs)} claimed exactly once, answered, closed")
        if settings.database.startswith("sqlite"):
            size = sum(file.stat().st_size for file in settings.home.glob("caisson.db*"))
            print(f"  database: {size / len(jobs):,.0f} bytes a job")
        events = sum(len(store.load(job)[1]) for job in jobs)
        print(f"  rows: 1 job, 1 attempt, {events / len(jobs):g} events a job")
    finally:
        store.close()


def measure_bare(url: str, options: argparse.Namespace) -> None:
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "bench.queue",
        "worker",
        "-c",
        "1",
        "-l",
        "INFO",
    ]
    os.environ[BROKER] = url
    bare.conf.update(broker_url=url, result_backend=url)
    with running([*command, "-n", "bare-%i@%h"], {BROKER: url}, options.workers, " ready."):
        started = time.monotonic()
        sent = [nothing.delay() for _ in range(options.jobs)]
        for one in sent:
            one.get(timeout=END_S)
        report("bare Celery", options.jobs, time.monotonic() - started)


def report(what: str, number: int, took_s: float) -> None:
    each_ms = 1000 * took_s / number
    print(f"  {what:12} {number:5} in {took_s:6.1f} s: {number / took_s:7.1f}/s, {each_ms:.1f} ms")


if __name__ == "__main__":
    main()
