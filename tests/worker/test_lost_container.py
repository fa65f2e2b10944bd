"""A container that is removed under a job: rebuilt once, said to the model, and nothing is left."""

from __future__ import annotations

import json
import threading
import time

import pytest

from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from worker.hooks import Observer
from worker.messages import FinishReason, ResultStatus, Status
from worker.runner import JobRequest, run_job
from worker.settings import Settings
from worker.testing import say

pytestmark = pytest.mark.engine

LONG_S = 20  # the call ends with its container


def slow(code, seconds=1):
    code = f"import time; {code}; time.sleep({seconds})"
    return say(None, ("python_interpreter", {"code": code}))


class Removing(Observer):
    """Removes the job's container while the calls of the given numbers run."""

    def __init__(self, started, numbers):
        self.started, self.numbers = started, numbers
        self.threads, self.events = [], []

    def on_event(self, event, history):
        self.events.append(event)
        if event.kind == "call" and history.number(event.call_id) in self.numbers:
            thread = threading.Thread(target=self.remove, args=(self.started[-1].container,))
            thread.start()
            self.threads.append(thread)

    def remove(self, container):
        time.sleep(0.4)
        engine = Engine()
        engine.remove(container)
        engine.close()


@pytest.fixture
def play(tmp_path, monkeypatch, job):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("data")

    def run(turns, numbers):
        (tmp_path / "turns.jsonl").write_text("\n".join(json.dumps(t) for t in turns))
        started = []

        def open_sandbox(spec):
            started.append(DockerSandbox.start(spec))
            return started[-1]

        watching = Removing(started, numbers)
        request = JobRequest(
            goal="g", files=(tmp_path / "in.txt",), replay=tmp_path / "turns.jsonl", id=job
        )
        done = run_job(request, Settings(), observer=watching, open_sandbox=open_sandbox)
        for thread in watching.threads:
            thread.join()
        return done, watching, len(started)

    return run


def test_it_is_replaced_with_its_inputs_and_the_model_is_told(play):
    look = say(None, ("shell", {"command": "cat in.txt; ls"}))
    done, watching, sandboxes = play([slow("x = 1"), slow("x = 2", LONG_S), look, say("end")], {2})
    assert (done.answer, sandboxes) == ("end", 2)
    results = [e.result for e in watching.events if e.kind == "result"]
    statuses = [ResultStatus.OK, ResultStatus.UNKNOWN, ResultStatus.OK]
    assert [r.status for r in results] == statuses
    assert "data" in results[2].text
    notices = [e.text for e in watching.events if e.kind == "notice"]
    assert notices[0].startswith("The sandbox was lost (")


def test_the_second_time_in_a_row_it_ends_as_our_failure(play):
    done, _, sandboxes = play([slow("x = 1", LONG_S), slow("x = 2", LONG_S), say("end")], {1, 2})
    assert (done.status, done.finish_reason) == (Status.DEAD, FinishReason.FAILED)
    assert (done.error.type, sandboxes) == ("SandboxLost", 2)


def test_a_cancel_ends_a_real_call_and_its_container(play, tmp_path, job):
    (tmp_path / "turns.jsonl").write_text(
        json.dumps(say(None, ("shell", {"command": "(setsid sleep 60 &); sleep 60"})))
    )
    begun = []

    class Watch(Observer):
        def on_event(self, event, history):
            if event.kind == "call":
                begun.append(time.monotonic())

    request = JobRequest(goal="g", replay=tmp_path / "turns.jsonl", id=job)
    done = run_job(
        request,
        Settings(),
        observer=Watch(),
        is_cancelled=lambda: bool(begun) and time.monotonic() - begun[0] > 1,
    )
    assert done.status is Status.CANCELLED
    assert time.monotonic() - begun[0] < 10
