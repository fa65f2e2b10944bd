"""Kill workers at every kind of moment and see what becomes of their jobs.

    python -m bench.kills [--random N] [--databases sqlite,postgres] [--only MOMENT]

Real processes (`caisson worker`), a real Redis, a real SQLite and PostgreSQL, real containers. Two
workers share a job whose cells leave visible traces; the process group of the one that has it is
ended with SIGKILL, at the named moments of `bench.mortal` and at random ones; the other goes on.
Prints one line per kill; the exit code is 1 unless every job ended with the right answer, every
trace was left exactly once, the variables were kept, and no container is left.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from bench.mortal import AFTER_CLAIM, BEFORE_CLAIM, RELEASED, RUNNING, STORED
from sandbox.engine import Engine
from tests.services import PostgresServer, RedisServer
from worker.celery_app import ring
from worker.errors import BrokerUnavailable
from worker.messages import Order, Status
from worker.runner import new_job
from worker.settings import Settings
from worker.store.blobs import Blobs
from worker.store.database import open_store
from worker.store.sql import SqlStore
from worker.testing import say

ROOT = Path(__file__).resolve().parents[1]
CAISSON = (sys.executable, "-c", "from worker.cli import main; main()")
LEASE_S, SWEEP_S = 2.0, 0.5
WORKERS, TICK_S = 2, 0.02
SLACK_S = 1.5  # on a busy machine: from the bell to the claim, and the reading of the clock
START_S, END_S = 30.0, 60.0
JOB_S = 3.5  # what the job takes when nobody is killed
# The second of each, so that there is something to lose; of some there is only one.
MOMENTS = (
    f"{BEFORE_CLAIM}:1",
    f"{AFTER_CLAIM}:1",
    *(
        f"{moment}:{1 if moment in {'sandbox opened', 'finishing'} else 2}"
        for moment in STORED.values()
    ),
    f"{RUNNING}:2",
    f"{RELEASED}:1",
)
SLOW = "import time; time.sleep(0.8)\n"


def _turns() -> Iterator[dict[str, object]]:
    """A job of which every cell counts in a variable and writes a line."""
    yield say(None, ("python_interpreter", {"code": "x = 1\nprint('a 1', file=open('log', 'a'))"}))
    for letter in "bc":
        code = f"{SLOW}x = globals().get('x', 100) + 1\nprint('{letter}', x, file=open('log', 'a'))"
        yield say(None, ("python_interpreter", {"code": code}))
    yield say(None, ("shell", {"command": "echo d >> log; wc -l < log > count"}))
    yield say("done")


RIGHT = {"log": "a 1\nb 2\nc 3\nd\n", "count": "4\n"}


class Outcome(NamedTuple):
    """What one kill came to."""

    database: str
    moment: str
    status: str
    is_right: bool
    is_kept: bool
    idle_s: float | None
    attempts: int
    containers: int

    @property
    def is_good(self) -> bool:
        in_time = self.idle_s is None or self.idle_s <= LEASE_S + SWEEP_S + SLACK_S
        return self.is_right and self.is_kept and in_time and not self.containers

    def line(self) -> str:
        idle = "-" if self.idle_s is None else f"{self.idle_s:.2f} s"
        return (
            f"{'ok ' if self.is_good else 'BAD'} {self.database:8} {self.moment:22} "
            f"{self.status:10} right={self.is_right!s:5} kept={self.is_kept!s:5} "
            f"idle={idle:>7} attempts={self.attempts} containers={self.containers}"
        )


class Yard:
    """A database, and two workers that look for jobs in it."""

    def __init__(self, name: str, home: Path, database_url: str | None, broker_url: str) -> None:
        self.name, self.home, self.broker_url = name, home, broker_url
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CAISSON_DATA_DIR": str(home),
            "CAISSON_BROKER_URL": broker_url,
            "CAISSON_LEASE_S": str(LEASE_S),
            "CAISSON_SWEEP_S": str(SWEEP_S),
            "CAISSON_CONCURRENCY": "1",
            "MORTAL_PLAN": str(home / "plan"),
            **({"CAISSON_DATABASE_URL": database_url} if database_url else {}),
        }
        given = {"data_dir": home, "broker_url": broker_url, "lease_s": LEASE_S}
        self.settings = Settings(
            **given, **({"database_url": database_url} if database_url else {})
        )
        self.store: SqlStore = open_store(self.settings.database)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._plan = home / "plan"

    def close(self) -> None:
        for worker in self._workers:
            _kill(worker)
        with closing(Engine()) as engine:  # spares, which nobody will take or remove any more
            for left in engine.labelled(f"caisson.store={self.store.identity}"):
                engine.remove(left["Id"])
        self.store.close()

    # ---- workers

    def restock(self) -> None:
        """Have two workers that live and are ready."""
        self._plan.with_suffix(".done").unlink(missing_ok=True)
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        while len(self._workers) < WORKERS:
            self._workers.append(self._start())
        pids = {worker.pid for worker in self._workers}
        _until(lambda: pids <= {_pid(w.name) for w in self.store.workers(within_s=30)}, START_S)

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.home / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [*CAISSON, "worker", "--include", "bench.mortal"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def plan(self, moment: str) -> None:
        """Let whoever comes to the moment first die."""
        self._plan.write_text(moment)

    def kill_holder(self, job_id: str) -> None:
        """End the worker that has the job, or any if none has."""
        holder = self.store.get(job_id).worker
        by_pid = {worker.pid: worker for worker in self._workers}
        _kill(by_pid.get(_pid(holder) or 0) or random.choice(self._workers))

    @property
    def killed_at(self) -> float | None:
        """When somebody died at the moment; the file is there a moment before that one is gone."""
        done = self._plan.with_suffix(".done")
        is_over = done.exists() and any(worker.poll() is not None for worker in self._workers)
        return done.stat().st_mtime if is_over else None

    # ---- jobs

    def submit(self) -> str:
        recording = "\n".join(map(json.dumps, _turns())).encode()
        blob = Blobs(self.home / "blobs").add(io.BytesIO(recording))
        job = new_job("Count.", self.settings, replay=Path("recording"))
        job_id = self.store.create(job, Order(replay=blob.sha256, memory_bytes=2**29, cpus=1.0))
        with contextlib.suppress(BrokerUnavailable):
            ring(self.settings)
        return job_id

    def judge(self, moment: str, job_id: str, killed_at: float | None) -> Outcome:
        with contextlib.suppress(TimeoutError):
            _until(lambda: self.store.get(job_id).job.status.is_final, END_S)
        job = self.store.get(job_id).job
        made = {artifact.name: Path(artifact.path).read_text() for artifact in job.artifacts}
        kinds = [event.kind for event in self.store.events(job_id)]
        attempts = self.store.attempts(job_id)
        # The time of a file is that of the last tick of the kernel's clock.
        began = [a.started_at for a in attempts if killed_at and a.started_at > killed_at + TICK_S]
        return Outcome(
            self.name,
            moment,
            job.status,
            job.status is Status.SUCCEEDED and job.answer == "done" and made == RIGHT,
            "sandbox" not in kinds,
            began[0] - killed_at if began and killed_at else None,
            len(attempts),
            self._containers(job_id),
        )

    def _containers(self, job_id: str) -> int:
        """How many are left after the reaper of a worker that starts has been here."""
        found = f"caisson.job={job_id}"
        with closing(Engine()) as engine:
            with contextlib.suppress(TimeoutError):
                _until(lambda: not engine.labelled(found), 3.0)
            if engine.labelled(found):  # killed between the end and the removal: the reaper's
                subprocess.run([*CAISSON, "reap"], env=self.environment, check=True)
            return len(engine.labelled(found))


def at_moment(yard: Yard, moment: str) -> Outcome:
    """Kill at a named moment."""
    yard.restock()
    yard.plan(moment)
    job_id = yard.submit()
    _until(lambda: yard.killed_at is not None, START_S)
    return yard.judge(moment, job_id, yard.killed_at)


def at_random(yard: Yard, after_s: float) -> Outcome:
    """Kill whoever has the job so long after it was submitted."""
    yard.restock()
    job_id = yard.submit()
    time.sleep(after_s)
    is_over = yard.store.get(job_id).job.status.is_final
    yard.kill_holder(job_id)
    return yard.judge(f"random, {after_s:.2f} s", job_id, None if is_over else time.time())


def _kill(worker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _pid(worker: str) -> int | None:
    """The process of a worker by its name: host, process, a few digits, and a slot's process."""
    found = re.search(r"-(\d+)-[0-9a-f]+(?:\.\d+)?$", worker)
    return int(found[1]) if found else None


def _until(is_true: object, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s")
        time.sleep(0.05)


def _kills(yard: Yard, moments: list[str], randoms: int) -> Iterator[Outcome]:
    yield from (at_moment(yard, moment) for moment in moments)
    yield from (at_random(yard, random.uniform(0.05, JOB_S)) for _ in range(randoms))


def run(databases: list[str], moments: list[str], randoms: int) -> list[Outcome]:
    """Kill at every moment on every database; prints as it goes."""
    outcomes = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="caisson-kills-")))
        redis = stack.enter_context(RedisServer())
        urls: dict[str, str | None] = {"sqlite": None}
        if "postgres" in databases:
            urls["postgres"] = stack.enter_context(PostgresServer()).database()
        for name in databases:
            home = folder / name
            home.mkdir()
            yard = Yard(name, home, urls[name], redis.database())
            stack.callback(yard.close)
            for outcome in _kills(yard, moments, randoms):
                outcomes.append(outcome)
                print(outcome.line(), flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=20, metavar="N")
    parser.add_argument("--databases", default="sqlite,postgres")
    parser.add_argument("--only", metavar="MOMENT")
    chosen = parser.parse_args()
    moments = [m for m in MOMENTS if not chosen.only or m.startswith(chosen.only)]
    outcomes = run(chosen.databases.split(","), moments, 0 if chosen.only else chosen.random)
    idle = [outcome.idle_s for outcome in outcomes if outcome.idle_s is not None]
    good = sum(outcome.is_good for outcome in outcomes)
    print(
        f"{good} of {len(outcomes)} as they must be; from the kill to going on: median "
        f"{statistics.median(idle):.2f} s, at most {max(idle):.2f} s "
        f"(lease {LEASE_S:g} s + sweep {SWEEP_S:g} s)"
    )
    return 0 if good == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
