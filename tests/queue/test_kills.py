"""Workers that are killed at each boundary of a job; `python -m bench.kills` does it at length."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from bench import kills
from tests.services import PostgresServer, RedisServer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.servers("redis", "postgres"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def yards(tmp_path_factory):
    """Two workers on each kind of database."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(PostgresServer())
        found = {}
        for name, url in (("sqlite", None), ("postgres", postgres.database())):
            home = tmp_path_factory.mktemp(name)
            found[name] = kills.Yard(name, home, url, redis.database())
            stack.callback(found[name].close)
        yield found


def test_the_job_of_a_killed_worker_ends_as_if_nothing_had_happened(yards):
    """Every boundary, on one database after the other, and a few random moments."""
    outcomes = []
    for number, moment in enumerate(kills.MOMENTS):
        yard = yards["sqlite" if number % 2 else "postgres"]
        outcomes.append(kills.at_moment(yard, moment))
    outcomes += [kills.at_random(yard, random.uniform(0.1, 2.0)) for yard in yards.values()]
    assert not [outcome.line() for outcome in outcomes if not outcome.is_good]
