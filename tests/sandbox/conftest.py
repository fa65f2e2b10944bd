"""One sandbox, of each driver, for each test that asks for one."""

from __future__ import annotations

import pytest

from sandbox.docker import DockerSandbox
from sandbox.process import ProcessSandbox
from sandbox.types import Limits, SandboxSpec

DOCKER = pytest.param("docker", marks=pytest.mark.engine)


@pytest.fixture
def start(job):
    """Start sandboxes that end with the test: `start("docker", memory_bytes=…)`."""
    started = []

    def begin(driver="docker", *, spec=None, **limits):
        wanted = spec or SandboxSpec(job=job, limits=Limits(**limits))
        if driver == "docker":
            made = DockerSandbox.start(wanted)
        else:
            made = ProcessSandbox.start(wanted, allow_unisolated=True)
        started.append(made)
        return made

    yield begin
    for made in started:
        made.close()


@pytest.fixture(params=[DOCKER, "process"])
def sandbox(request, start):
    """A sandbox with default limits, from each driver in turn."""
    return start(request.param)


@pytest.fixture
def container(start):
    """A sandbox in a container."""
    return start("docker")
