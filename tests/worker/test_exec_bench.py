"""The bench that `caisson exec` runs calls on, over a sandbox that runs nothing."""

from __future__ import annotations

import threading

import pytest

from sandbox.errors import SandboxLost
from worker import assembly
from worker.cli_exec import Bench, Call
from worker.errors import InputInvalid
from worker.settings import Settings
from worker.testing import FakeSandbox, echo, ok


@pytest.fixture
def run(monkeypatch):
    """Run one call on a bench whose sandbox answers as told."""

    def start(respond, cancelled, timeout_s=None):
        monkeypatch.setattr(assembly, "start_sandbox", lambda *_: FakeSandbox(respond))
        settings = Settings()
        with Bench(settings, settings.spec(), ()) as bench:
            bench.prepare(threading.Event())
            return bench.run(Call(kind="python", text="1", timeout_s=timeout_s), cancelled)

    return start


def test_a_call_may_not_outlast_the_sandbox(run):
    with pytest.raises(InputInvalid, match=r"longer than the sandbox lives \(4200 s\)"):
        run(echo, threading.Event(), timeout_s=4300)


def test_a_cancel_that_came_too_early_is_said_again(run):
    cancelled = threading.Event()

    def respond(sandbox, kind, text):
        cancelled.set()
        assert sandbox.cancelled.wait(1.0)
        sandbox.cancelled.clear()  # nothing was running yet
        assert sandbox.cancelled.wait(1.0)
        return ok("stopped early")

    assert run(respond, cancelled).output == "stopped early"


def test_a_cancel_that_nobody_hears_is_the_failure_of_the_call_alone(run):
    cancelled = threading.Event()

    def respond(sandbox, kind, text):
        sandbox.is_lost = True
        cancelled.set()
        assert sandbox.cancelled.wait(1.0)
        return ok()

    with pytest.raises(SandboxLost, match="removed from outside"):
        run(respond, cancelled)
