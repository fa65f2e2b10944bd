"""One thread hears of a cancel for all calls of a job."""

from __future__ import annotations

import threading
import time

import pytest

from worker.builtin.watch import Watch
from worker.errors import LeaseLost
from worker.testing import FakeSandbox


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "cancel"]


@pytest.fixture
def watch():
    others = watchers()
    made = Watch(idle_s=0.3)
    made.threads = lambda: [thread for thread in watchers() if thread not in others]
    yield made
    for thread in made.threads():
        thread.join(2.0)
    assert made.threads() == []  # it ends by itself


def test_many_calls_have_one_thread(watch):
    seen = set()
    for _ in range(50):
        with watch.over(FakeSandbox(), lambda: False):
            seen.update(watch.threads())
    assert len(seen) == 1


def test_after_a_pause_calls_are_watched_again(watch):
    for _ in range(2):
        sandbox = FakeSandbox()
        with watch.over(sandbox, lambda: True):
            assert sandbox.cancelled.wait(1.0)
        for thread in watch.threads():
            thread.join(2.0)


def test_a_cancel_is_of_the_call_that_runs(watch):
    first, second = FakeSandbox(), FakeSandbox()
    with watch.over(first, lambda: True):
        assert first.cancelled.wait(1.0)
    first.cancelled.clear()
    with watch.over(second, lambda: False):
        time.sleep(0.25)
    assert not first.cancelled.is_set()
    assert not second.cancelled.is_set()


def test_a_call_that_ends_waits_for_a_cancel_on_its_way(watch):
    begun, steps = threading.Event(), []

    def is_cancelled():
        begun.set()
        time.sleep(0.2)
        steps.append("asked")
        return False

    with watch.over(FakeSandbox(), is_cancelled):
        assert begun.wait(1.0)
    steps.append("over")
    assert steps[:2] == ["asked", "over"]


def test_a_job_that_is_anothers_is_let_go_of_once(watch):
    asked = []

    def is_cancelled():
        asked.append(1)
        raise LeaseLost("it is another's")

    sandbox = FakeSandbox()
    with watch.over(sandbox, is_cancelled):
        deadline = time.monotonic() + 10
        while not sandbox.is_detached and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.35)
    assert sandbox.is_detached
    assert len(asked) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_breaks_in_one_call_leaves_no_later_one_unwatched(watch):
    def is_cancelled():
        raise ZeroDivisionError

    with watch.over(FakeSandbox(), is_cancelled):
        for thread in watch.threads():
            thread.join(2.0)
    sandbox = FakeSandbox()
    with watch.over(sandbox, lambda: True):
        assert sandbox.cancelled.wait(1.0)
