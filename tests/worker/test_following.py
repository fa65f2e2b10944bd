"""Following a job: each event once and in order, who has it, what it waits for, and outages."""

from __future__ import annotations

import threading
import time

import pytest

from worker.errors import JobUnknown, Stop, StoreUnavailable
from worker.following import Follower, doing, waits_for
from worker.history import History
from worker.hooks import Run
from worker.messages import (
    FinishReason,
    Job,
    Message,
    MessageAdded,
    Reply,
    ResultStatus,
    Role,
    SandboxOpened,
    Status,
    ToolCall,
    ToolResult,
)
from worker.store.base import Listed, WorkerSeen
from worker.store.memory import MemoryStore


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Counting(MemoryStore):
    """Counts what is read of it, and is away when told so."""

    def __init__(self, clock):
        super().__init__(clock)
        self.loads = 0
        self.read = 0
        self.is_away = False

    def load(self, job_id):
        self.loads += 1
        job, events = super().load(job_id)
        self.read += len(events)
        return job, events

    def events(self, job_id, after=0):
        if self.is_away:
            raise StoreUnavailable("away")
        events = super().events(job_id, after)
        self.read += len(events)
        return events


class Seen:
    """A viewer that remembers, and does something at each standing that it is shown."""

    is_gone = False

    def __init__(self):
        self.all = []
        self.then = {}

    def on_event(self, event, history):
        self.all.append(event.kind)

    def on_standing(self, what, *, is_waiting):
        self.all.append(f"{'waits' if is_waiting else 'goes on'}: {what}")
        if self.then:
            self.then.pop(min(self.then))()

    def on_change(self, what):
        self.all.append(what)

    def next(self, *steps):
        self.then = dict(enumerate(steps))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    store = Counting(clock)
    store.create(Job(id="j", goal="g"))
    return store


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def follow(store, seen):
    def run(is_stopped=None):
        return Follower(store, "j", seen, poll_s=0.005).follow(is_stopped or threading.Event())

    return run


def taken(store, worker="w1"):
    claim = store.claim("j", worker, lease_s=30)
    run = Run(History(*store.load("j")), store, claim.generation)
    run.clock = store._clock
    return run


def begin(run):
    run.append(MessageAdded(message=Message(role=Role.USER, content="g")))
    run.append(SandboxOpened(place="p"))


def call(run):
    made = ToolCall(id="x", name="shell")
    run.add_reply(Reply(message=Message(role=Role.ASSISTANT, tool_calls=(made,))))
    run.begin(run.history.last.calls[0], "p")


def result(run):
    made = run.history.last.calls[0]
    run.add_result(ToolResult(call_id=made.id, name="shell", status=ResultStatus.OK, text=""))


def end(run):
    run.end(Stop("", reason=FinishReason.ANSWERED, answer="42"))
    run.store.release("j", generation=run.generation)


def test_a_job_that_is_over_is_shown_from_its_first_event_to_its_last(store, follow, seen):
    run = taken(store)
    for step in (begin, call, result, end):
        step(run)
    assert follow().job.answer == "42"
    assert seen.all == ["message", "opened", "reply", "call", "result", "ended"]


def test_each_moment_of_a_job_is_shown_as_it_comes(store, follow, seen):
    store.see(WorkerSeen(name="w1"))
    runs = []
    seen.next(
        lambda: runs.append(taken(store)),
        lambda: begin(runs[0]),
        lambda: call(runs[0]),
        lambda: result(runs[0]),
        lambda: end(runs[0]),
    )
    assert follow().job.status is Status.SUCCEEDED
    assert seen.all == [
        "waits: it waits for a worker",
        "goes on: a sandbox starts",
        *("message", "opened", "goes on: the model thinks"),
        *("reply", "call", "goes on: shell runs"),
        *("result", "goes on: the model thinks"),
        "ended",
    ]


def test_no_event_is_read_twice(store, follow, seen):
    runs = [taken(store)]
    store.loads = store.read = 0
    seen.next(*[lambda: runs[0].remark("x")] * 20, lambda: end(runs[0]))
    follow()
    assert (store.loads, store.read) == (1, 21)


def test_whoever_stops_watching_is_let_go_and_the_job_is_not(store, follow, seen):
    is_stopped = threading.Event()
    seen.next(is_stopped.set)
    assert follow(is_stopped) is None
    assert store.get("j").job.status is Status.QUEUED
    assert not store.is_cancel_requested("j")


def test_when_nobody_looks_any_more_nothing_is_followed(store, follow, seen):
    seen.next(lambda: setattr(seen, "is_gone", True))
    assert follow() is None


def test_a_worker_that_was_lost_and_its_successor_are_named_where_it_happened(
    store, clock, follow, seen
):
    first = taken(store, "w1")
    begin(first)
    clock.now += 31
    second = taken(store, "w2")
    clock.now += 1
    end(second)
    follow()
    assert seen.all == ["message", "opened", "worker w1 was lost; w2 goes on", "ended"]


def test_the_same_while_it_happens(store, clock, follow, seen):
    store.see(WorkerSeen(name="w2"))
    runs = [taken(store, "w1")]
    begin(runs[0])

    def lose():
        clock.now += 31

    seen.next(lose, lambda: runs.append(taken(store, "w2")), lambda: end(runs[1]))
    follow()
    assert seen.all[3:] == [
        "waits: it waits for another worker; its own was lost",
        "worker w1 was lost; w2 goes on",
        "goes on: the model thinks",
        "ended",
    ]


def test_a_worker_that_hands_over_was_not_lost(store, follow, seen):
    first = taken(store, "w1")
    store.release("j", generation=first.generation)
    end(taken(store, "w2"))
    follow()
    assert seen.all == ["worker w1 has let go; w2 goes on", "ended"]


def test_a_store_that_is_away_for_a_moment_is_waited_for(store, follow, seen):
    run = taken(store)

    def leave():
        store.is_away = True
        threading.Timer(0.05, come_back).start()

    def come_back():
        end(run)
        store.is_away = False

    seen.next(leave)
    assert follow().job.answer == "42"
    assert "waits: the database does not answer" in seen.all


def test_a_store_that_stays_away_is_an_error(store, seen):
    seen.next(lambda: setattr(store, "is_away", True))
    impatient = Follower(store, "j", seen, poll_s=0.005, patience_s=0.05)
    with pytest.raises(StoreUnavailable):
        impatient.follow(threading.Event())


def test_a_job_that_nobody_knows(store, seen):
    with pytest.raises(JobUnknown):
        Follower(store, "nope", seen).follow(threading.Event())


@pytest.mark.parametrize(
    ("status", "lacks", "workers", "said"),
    [
        (Status.QUEUED, "", 0, "a worker; none runs (caisson worker starts one)"),
        (Status.QUEUED, "", 1, "a worker"),
        (Status.QUEUED, "2 GiB of memory", 1, "2 GiB of memory"),
        (Status.RUNNING, "", 1, "another worker; its own was lost"),
        (Status.RUNNING, "", 0, "a worker; none runs (caisson worker starts one)"),
        (Status.WAITING, "", 1, "a decision"),
    ],
)
def test_what_a_job_waits_for(status, lacks, workers, said):
    listed = Listed(job=Job(id="j", goal="g", status=status), waits_for=lacks)
    assert waits_for(listed, [WorkerSeen(name="w")] * workers) == said


def test_a_broker_that_is_away_is_said_after_a_while_and_not_asked_all_the_time(store, seen):
    asked = []

    def ask():
        asked.append(time.monotonic())
        return "it is off"

    follower = Follower(store, "j", seen, ask, poll_s=0.01)
    begun = time.monotonic()
    is_stopped = threading.Event()
    seen.next(lambda: None, is_stopped.set)
    follower.follow(is_stopped)
    assert seen.all == [
        "waits: it waits for a worker; none runs (caisson worker starts one)",
        "waits: it waits for the broker; it is off",
    ]
    assert len(asked) == 1
    assert asked[0] - begun > 0.5  # most jobs are taken before it is worth to ask


def test_the_last_moment_of_a_job_is_when_its_files_are_put_away(store):
    run = taken(store)
    run.end(Stop("", reason=FinishReason.ANSWERED, answer="42"))
    assert doing(run.history) == "its files are put away"
