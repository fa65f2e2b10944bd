"""What must be reached, judged by the medians of one run; what was not measured is left out."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Figure
from bench.parts import CLIENT, COLD, ENGINE, FLOOR, PIPED, STORES, WARM
from bench.stage import OURS, Results

STARTING_PEERS = ("llm-sandbox", "autogen-ext", "smolagents")  # each opening is a container's start
FILE_MB_S = 200.0
JOBS_PER_S, PART_OF_ENGINE = 3.0, 0.8
GROWTH = 1.25  # of the time for each, when a crowd grows


def targets_of(results: Results) -> list[Figure]:
    return [*_sandboxes(results), *_rest(results), *_growth(results)]


def _sandboxes(results: Results) -> Iterator[Figure]:
    yield from _at_most("open, from the pool", results.median("open", WARM), 10.0, "ms")
    opened = [results.median("open", who) for who in STARTING_PEERS]
    fastest = min((each for each in opened if each), default=None)
    yield from _times(
        "open, from the pool, against the fastest peer that starts one",
        (fastest, results.median("open", WARM)),
        least=50.0,
    )
    yield from _times(
        "open, cold, against create and start",
        (results.median("open", COLD), results.median("open", ENGINE)),
        most=1.15,
    )
    yield from _at_most("trivial call", results.median("call", WARM), 1.0, "ms")
    called = results.median("call", WARM)
    yield from _times(
        "trivial call, against smolagents",
        (results.median("call", "smolagents"), called),
        least=60.0,
    )
    for who in (PIPED, FLOOR):
        name = f"trivial call, against a round trip by {who}"
        yield from _times(name, (called, results.median("call", who)), most=3.0)
    yield from _at_most("first `import pandas`", results.median("pandas", WARM), 5.0, "ms")
    yield from _at_most("shell call `true`", results.median("shell", WARM), 5.0, "ms")
    yield from _at_most("close", results.median("close", WARM), 5.0, "ms")


def _rest(results: Results) -> Iterator[Figure]:
    yield from _at_most("after a killed interpreter", results.median("restart", OURS), 50.0, "ms")
    for name, row in {"file in": "write", "file out": "read"}.items():
        if (rate := results.median(row, OURS)) is not None:
            yield Figure(name, rate, "MB/s", FILE_MB_S, is_floor=True)
    yield from _at_most("idle spare, dirty", results.median("dirty", OURS), 65.0, "MiB")
    step, bare = results.median("step", STORES["sqlite"]), results.median("step", CLIENT)
    if step is not None and bare is not None:
        yield Figure("step with SQLite, above the client alone", step - bare, "ms", 3.0)
    done, most = results.median("jobs", OURS), results.median("jobs", ENGINE)
    if done is not None and most is not None:
        limit = min(JOBS_PER_S, PART_OF_ENGINE * most)
        yield Figure("jobs of 5 calls, 8 at a time", done, "jobs/s", limit, is_floor=True)
    yield from _at_most("worker's memory, for each job", results.median("slope", OURS), 10.0, "KiB")


def _growth(results: Results) -> Iterator[Figure]:
    """Opening must not grow faster than the crowd, nor a step faster than its history.

    The best round of each crowd counts, which other programs have disturbed least. For calls there
    is no such target: that they differ by the machine's noise is all that is seen.
    """
    each = {count: results.least("crowd_open", f"{OURS}, {count}") for count in (4, 8, 16, 32, 64)}
    known = [(count, value) for count, value in each.items() if value is not None]
    if len(known) > 1:
        (few, before), (many, after) = known[0], known[-1]
        name = f"open, each of {many} at once, against each of {few}"
        yield Figure(name, after / before, "×", GROWTH)
    late = [results.median("late_step", f"{OURS}, {count} steps") for count in (100, 1000)]
    yield from _times("step after 1,000, against after 100", (late[1], late[0]), most=10.0)


def _at_most(name: str, value: float | None, limit: float, unit: str) -> Iterator[Figure]:
    if value is not None:
        yield Figure(name, value, unit, limit)


def _times(
    name: str,
    pair: tuple[float | None, float | None],
    *,
    most: float | None = None,
    least: float | None = None,
) -> Iterator[Figure]:
    """How many times the second of two numbers the first is."""
    first, second = pair
    if first is None or second is None:
        return
    limit = most if most is not None else least
    assert limit is not None
    yield Figure(name, first / second, "×", limit, is_floor=least is not None)
