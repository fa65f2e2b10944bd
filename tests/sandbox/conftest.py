"""One sandbox, of each driver, for each test that asks for one."""

from __future__ import annotations

import ast
import contextlib
import io
from contextlib import closing

import pytest

from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.process import ProcessSandbox
from sandbox.stock import shape_of
from sandbox.types import Limits, SandboxSpec
from worker.testing import FakeSandbox, ok

DOCKER = pytest.param("docker", marks=pytest.mark.engine)


def start_as_spare(spec, libraries=("json",)):
    """Make what a pool makes, and take it as a job does."""
    spare = DockerSandbox.start(shape_of(spec))
    spare.preload(libraries)
    return DockerSandbox.take(spare.hand_off(), spec)


@pytest.fixture
def start(job):
    """Start sandboxes that end with the test: `start("docker", memory_bytes=…)`."""
    started = []

    def begin(driver="docker", *, spec=None, **limits):
        wanted = spec or SandboxSpec(job=job, limits=Limits(**limits))
        if driver == "spare":
            made = start_as_spare(wanted)
        elif driver == "docker":
            made = DockerSandbox.start(wanted)
        elif driver == "process":
            made = ProcessSandbox.start(wanted, allow_unisolated=True)
        else:
            made = FakeSandbox(RunHere(), wanted)
        started.append(made)
        return made

    yield begin
    for made in started:
        made.close()
    containers = [made.container for made in started if isinstance(made, DockerSandbox)]
    if containers:  # one that was let go of is still there
        with closing(Engine()) as engine:
            for container in containers:
                engine.remove(container)


class RunHere:
    """Runs simple Python for a fake sandbox, in this very process."""

    def __init__(self):
        self.names = {}

    def __call__(self, sandbox, kind, text):
        output, tree = io.StringIO(), ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(output):
            exec(compile(tree, "<call>", "exec"), self.names)
            value = last and eval(compile(ast.Expression(last.value), "<call>", "eval"), self.names)
        return ok(output.getvalue(), value=None if value is None else repr(value))


@pytest.fixture(params=[DOCKER, "process"])
def sandbox(request, start):
    """A sandbox with default limits, from each driver in turn."""
    return start(request.param)


@pytest.fixture(params=[DOCKER, "process", "fake"])
def any_sandbox(request, start):
    """A sandbox from each driver, and the fake one that stands in for them elsewhere."""
    return start(request.param)


@pytest.fixture(params=["docker", "spare"])
def container(request, start):
    """A sandbox in a container that was made for it, and in one that has waited for it."""
    return start(request.param)
