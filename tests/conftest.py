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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Decide before any fixture is made, of whatever scope."""
    if item.get_closest_marker("engine") is None:
        return
    why = find_no_engine()
    if why and os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"REQUIRE_SERVICES=1, and there is no engine: {why}")
    if why:
        pytest.skip(why)


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
