"""What all tests share: real engines or an honest skip, and no container left behind."""

from __future__ import annotations

import functools
import gc
import os
import warnings
from contextlib import closing

import pytest

from sandbox.engine import Engine
from sandbox.errors import EngineUnavailable, ImageMissing
from sandbox.types import SandboxSpec
from tests.services import SERVERS

# Taken out of the environment, which the commands under test inherit and would complain about.
NO_ENGINE = os.environ.pop("CAISSON_NO_ENGINE", "")
JOB = f"test-{os.getpid()}"


@functools.cache
def find_no_engine():
    """Say why tests cannot use an engine; empty if they can."""
    if NO_ENGINE:
        return NO_ENGINE
    with warnings.catch_warnings():
        # docker-py leaves the socket of a failed connection to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with closing(Engine()) as engine:
                engine.image(SandboxSpec().image)
        except (EngineUnavailable, ImageMissing) as error:
            return str(error)
        finally:
            gc.collect()
    return ""


@pytest.fixture(scope="session")
def why_no_engine():
    """Why there is no engine; empty if there is one."""
    return find_no_engine()


def servers_of(item):
    """Names of the servers that a test needs, by its marker `servers` or by fixtures."""
    marked = {name for marker in item.iter_markers("servers") for name in marker.args}
    return sorted(marked | {name for name in SERVERS if f"{name}_server" in item.fixturenames})


def why_not_here(item):
    if item.get_closest_marker("engine") is not None and find_no_engine():
        return f"there is no engine: {find_no_engine()}"
    missing = (SERVERS[name].why_missing() for name in servers_of(item))
    return next(filter(None, missing), "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Decide before any fixture is made, of whatever scope."""
    why = why_not_here(item)
    if why:
        skip_or_fail(why)


def skip_or_fail(why):
    """Leave a test out, unless nothing may be left out."""
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"REQUIRE_SERVICES=1, and {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def leave_out():
    """Called with the reason by a fixture that finds what it needs missing."""
    return skip_or_fail


def running(name):
    """One server of a kind for the whole run, started when a test asks for it."""
    with SERVERS[name]() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server():
    yield from running("redis")


@pytest.fixture(scope="session")
def postgres_server():
    yield from running("postgres")


@pytest.fixture(scope="session")
def rabbit_server():
    yield from running("rabbit")


@pytest.fixture
def redis_url(redis_server):
    """An empty database of a Redis that runs, whatever an earlier test did to it."""
    redis_server.start()
    return redis_server.database()


@pytest.fixture
def postgres_url(postgres_server):
    """An empty database of a PostgreSQL that runs, whatever an earlier test did to it."""
    postgres_server.start()
    return postgres_server.database()


@pytest.fixture
def rabbit_url(rabbit_server):
    """A virtual host without queues of a RabbitMQ that runs (takes 3 s)."""
    rabbit_server.start()
    return rabbit_server.database()


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind():
    """No test may leave a container, whatever it did to the sandbox."""
    yield
    if not find_no_engine():
        with closing(Engine()) as engine:
            left = [found["Names"] for found in engine.labelled(f"caisson.job={JOB}")]
        assert not left


@pytest.fixture(scope="session")
def job():
    """The job name of this run's sandboxes, by which those left behind are found."""
    return JOB
