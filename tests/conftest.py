"""What all tests share: real engines or an honest skip, and no container left behind."""

from __future__ import annotations

import os

import pytest

from sandbox.engine import Engine
from sandbox.errors import EngineUnavailable, ImageMissing
from sandbox.types import SandboxSpec

# Taken out of the environment, which the commands under test inherit and would complain about.
NO_ENGINE = os.environ.pop("CAISSON_NO_ENGINE", "")
JOB = f"test-{os.getpid()}"


def _why_no_engine() -> str:
    if NO_ENGINE:
        return NO_ENGINE
    try:
        engine = Engine()
        engine.image(SandboxSpec().image)
        engine.close()
    except (EngineUnavailable, ImageMissing) as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def why_no_engine():
    return _why_no_engine()


@pytest.fixture(autouse=True)
def _engine_or_skip(request):
    if request.node.get_closest_marker("engine") is None:
        return
    why = request.getfixturevalue("why_no_engine")
    if why and os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"REQUIRE_SERVICES=1, and there is no engine: {why}")
    if why:
        pytest.skip(why)


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind(why_no_engine):
    """No test may leave a container, whatever it did to the sandbox."""
    yield
    if not why_no_engine:
        engine = Engine()
        left = [found["Names"] for found in engine.labelled(f"caisson.job={JOB}")]
        engine.close()
        assert not left


@pytest.fixture(scope="session")
def job():
    """The job name of this run's sandboxes, by which those left behind are found."""
    return JOB
