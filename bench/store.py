"""What a store costs: the time of its writes, the room of a job, and how its log of events grows.

    python -m bench.store [--rounds N] [--steps N,N,…] [--stores memory,sqlite,postgres] [--check]

Jobs are worked on by the real loop, with a model that is scripted and a sandbox that runs nothing.
SQLite lies in a temporary folder (TMPDIR says where); PostgreSQL is started for the occasion, and
does not wait for the disk. With --check the exit code is 1 if SQLite misses a target (an event in
0.5 ms, a claim and its release in 5 ms), or if a log grows faster than its steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sqlalchemy import Connection, func, select

from bench.figures import Figure, p95
from bench.stores import opened
from sandbox.types import Execution
from worker import assembly
from worker.builtin import Workplace
from worker.history import History
from worker.hooks import Run
from worker.messages import Job, MessageAdded, Status, Wire
from worker.settings import Settings
from worker.store.base import Store, WorkerSeen
from worker.store.connections import Database
from worker.store.packing import event_body
from worker.store.tables import metadata
from worker.testing import FakeSandbox, ScriptedModel, ok, say

APPEND_TARGET_MS, CLAIM_TARGET_MS = 0.5, 5.0
GROWTH_TARGET = 1.1
LEASE_S = 60.0
WORKER = WorkerSeen(name="bench", engine="bench", memory_bytes=2**40, cpus=1e6)
SMALL = 2  # steps of a small job: one call, and the answer


# ---- a job, worked on for real


def respond(_sandbox: FakeSandbox, _kind: str, code: str) -> Execution:
    """Some output, as of a cell that prints a table, another one for each call."""
    lines = [f"{code[-24:]:>30} {number:>8} {number * 0.37:>12.4f}" for number in range(12)]
    return ok("\n".join(lines))


def script(steps: int) -> Iterator[Wire]:
    for number in range(1, steps):
        code = f"table = frame.groupby('city').mean().round({number % 9})\nprint(table)  # {number}"
        call = say("Look at the next part.", ("python_interpreter", {"code": code}))
        yield {**call, "usage": {"input_tokens": 1000 + number, "output_tokens": 40, "cost": 0.01}}
    yield say("The answer is 42.")


def work(store: Store, job_id: str, steps: int) -> None:
    """Work on a job until its answer, which is its last step."""
    settings = Settings(max_steps=steps + 1, loop_observe=True, context_tokens=100_000)
    store.create(Job(id=job_id, goal="Find out.", budget=settings.budget()))
    claim = store.claim(job_id, "bench", LEASE_S)
    run = Run(History(*store.load(job_id)), store, claim.generation)
    for message in assembly.opening("Find out."):
        run.append(MessageAdded(message=message))
    place = Workplace(lambda: FakeSandbox(respond))
    place.open()
    assembly.build(settings, ScriptedModel([*script(steps)]), place).drive(run)
    status = store.release(job_id, generation=claim.generation)
    assert status is Status.SUCCEEDED, status
    assert run.job.steps == steps


# ---- time


def taken_ms(rounds: int, act: Callable[[int], object]) -> list[float]:
    """Do something so many times; returns what each took."""
    taken = []
    for number in range(rounds):
        started = time.perf_counter()
        act(number)
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def timed(name: str, taken: list[float], limit: float | None) -> tuple[Figure, Figure]:
    median = Figure(f"{name}, median", statistics.median(taken), "ms", limit)
    return median, Figure(f"{name}, 95 %", p95(taken), "ms")


def times(store: Store, rounds: int, *, has_targets: bool) -> Iterator[Figure]:
    """What writes take, one after the other."""
    work(store, "example", SMALL)
    result = next(event for event in store.events("example") if event.kind == "result")
    store.create(Job(id="times", goal="g"))
    generation = store.claim("times", "bench", LEASE_S).generation

    def take(_number: int) -> None:
        claim = store.claim_next(WORKER, LEASE_S)
        assert claim is not None
        store.release(claim.job_id, generation=claim.generation)

    acts: dict[str, tuple[Callable[[int], object], float]] = {
        "event": (
            lambda _: store.append("times", result, generation=generation),
            APPEND_TARGET_MS,
        ),
        "new job": (lambda number: store.create(Job(id=f"due-{number}", goal="g")), 0.0),
        "claim and release": (take, CLAIM_TARGET_MS),
    }
    for name, (act, target) in acts.items():
        yield from timed(name, taken_ms(rounds, act), target if target and has_targets else None)


# ---- room


def log_bytes(store: Store, job_id: str) -> int:
    """What the events of a job are, as they are stored."""
    return sum(len(event_body(event).encode()) for event in store.events(job_id))


def growth(store: Store, steps: Sequence[int]) -> Iterator[Figure]:
    """How the log of a job grows with its steps, and what one step more costs."""
    sizes: dict[int, int] = {}
    for number in steps:
        work(store, f"long-{number}", number)
        sizes[number] = log_bytes(store, f"long-{number}")
        yield Figure(f"log of {number} steps", sizes[number], "bytes")
    for shorter, longer in pairwise(steps):
        each = (sizes[longer] - sizes[shorter]) / (longer - shorter)
        yield Figure(f"each step from {shorter} to {longer}", each, "bytes")
    *_, before, last = (sizes[number] / number for number in steps)
    yield Figure("a step of the longest / of the one before", last / before, "", GROWTH_TARGET)


def room(database: Database) -> tuple[int, int]:
    """Rows and bytes of all tables and indexes."""

    def look(connection: Connection) -> tuple[int, int]:
        counts = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
        ]
        if database.is_sqlite:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
            size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        else:
            size = (
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
                " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            )
        return sum(counts), int(connection.exec_driver_sql(size).scalar_one())

    return database.read(look)


def rooms(store: Store, database: Database, jobs: int) -> Iterator[Figure]:
    """What small jobs take in the database."""
    rows, size = room(database)
    for number in range(jobs):
        work(store, f"small-{number}", SMALL)
    more_rows, more_size = room(database)
    yield Figure(f"a job of {SMALL} steps", (more_rows - rows) / jobs, "rows")
    yield Figure(f"a job of {SMALL} steps", (more_size - size) / jobs, "bytes")
    yield Figure("… of which its events", log_bytes(store, "small-0"), "bytes")


# ---- all of it


def measure(kind: str, rounds: int, steps: Sequence[int], jobs: int) -> list[Figure]:
    with opened(kind) as (store, database):
        found = [*times(store, rounds, has_targets=kind == "sqlite"), *growth(store, steps)]
        return [*found, *rooms(store, database, jobs)] if database else found


def show(kind: str, figures: Sequence[Figure]) -> None:
    print(f"\n{kind}")
    for figure in figures:
        digits = 3 if figure.unit in {"ms", ""} else 0
        line = f"  {figure.name:<44} {figure.value:>12,.{digits}f} {figure.unit:<5}"
        if figure.limit is not None:
            line += f"  (at most {figure.limit:g}{'' if figure.is_met else ': MISSED'})"
        print(line.rstrip())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.store", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--steps", default="10,100,1000")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--stores", default="memory,sqlite,postgres")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(arguments)
    steps, missed = [int(number) for number in asked.steps.split(",")], False
    for kind in asked.stores.split(","):
        figures = measure(kind, asked.rounds, steps, asked.jobs)
        show(kind, figures)
        missed = missed or not all(figure.is_met for figure in figures)
    return int(asked.check and missed)


if __name__ == "__main__":
    sys.exit(main())
