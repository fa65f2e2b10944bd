"""Cancelling a job: in the queue, in a worker's hands, after its worker was lost, and too late."""

from __future__ import annotations

import pytest

from worker.cancelling import cancel
from worker.errors import Cancelled, JobUnknown, LeaseLost, Stop
from worker.history import History
from worker.hooks import Run
from worker.messages import (
    Ended,
    FinishReason,
    Job,
    Message,
    Reply,
    ResultStatus,
    Role,
    Status,
    ToolCall,
)
from worker.store.memory import MemoryStore


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    store = MemoryStore(clock)
    store.create(Job(id="j", goal="g"))
    return store


def held(store):
    """A worker's hold on the job, in the middle of a call."""
    claim = store.claim("j", "worker", lease_s=30)
    run = Run(History(*store.load("j")), store, claim.generation)
    call = ToolCall(id="x", name="shell")
    run.add_reply(Reply(message=Message(role=Role.ASSISTANT, tool_calls=(call,))))
    run.begin(run.history.last.calls[0], "somewhere")
    return run


def test_a_queued_job_ends_on_the_spot(store):
    assert cancel(store, "j") is Status.CANCELLED
    found = store.get("j")
    assert (found.job.status, found.job.finish_reason) == (
        Status.CANCELLED,
        FinishReason.CANCELLED,
    )
    assert found.ended_at is not None
    assert not found.is_held


def test_its_history_is_valid_and_tells_why(store):
    cancel(store, "j")
    (ended,) = store.events("j")
    assert isinstance(ended, Ended)
    assert ended.error.message == "cancelled on request"


def test_a_held_job_is_left_to_its_worker(store):
    run = held(store)
    assert cancel(store, "j") is Status.RUNNING
    assert store.is_cancel_requested("j")
    run.end(Cancelled())  # it is not disturbed
    assert store.release("j", generation=run.generation) is Status.CANCELLED


def test_a_job_whose_worker_was_lost_ends_with_a_result_for_every_call(store, clock):
    run = held(store)
    clock.now += 31
    assert cancel(store, "j") is Status.CANCELLED
    history = History(*store.load("j"))
    assert history.last.pending == ()
    assert history.last.results[history.last.calls[0].id].status is ResultStatus.CANCELLED
    with pytest.raises(LeaseLost):
        run.remark("late")


def test_a_job_that_was_given_back_ends_too(store):
    run = held(store)
    assert store.release("j", generation=run.generation) is Status.QUEUED
    assert cancel(store, "j") is Status.CANCELLED


def test_a_job_that_is_over_stays_as_it_is(store):
    run = held(store)
    run.end(Stop("", reason=FinishReason.ANSWERED, answer="42"))
    store.release("j", generation=run.generation)
    assert cancel(store, "j") is Status.SUCCEEDED
    assert not store.is_cancel_requested("j")
    assert store.get("j").job.answer == "42"


def test_an_answer_whose_files_are_still_to_come_is_not_closed_without_them(store, clock):
    run = held(store)
    run.end(Stop("", reason=FinishReason.ANSWERED, answer="42"))
    clock.now += 31
    assert cancel(store, "j") is Status.RUNNING
    assert store.claim("j", "another", lease_s=30).generation == run.generation + 1


def test_cancelling_twice_is_cancelling_once(store):
    assert [cancel(store, "j") for _ in range(2)] == [Status.CANCELLED] * 2
    assert len(store.events("j")) == 1


def test_an_unknown_job(store):
    with pytest.raises(JobUnknown):
        cancel(store, "nope")
