"""A step costs the same however many there were. Counted are calls of functions, not time."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from worker import assembly
from worker.context import Window
from worker.hooks import Observer
from worker.messages import Status
from worker.testing import say

EARLY, LATE, STEPS = 60, 300, 10


class Counting(Observer):
    """Counts the calls of functions, in Python and in C, within some steps."""

    def __init__(self):
        self.calls = Counter()

    def on_asking(self, history):
        first = history.job.steps
        if first in {EARLY, LATE}:
            sys.setprofile(lambda _, __, ___: self.calls.update([first]))
        if first - STEPS in {EARLY, LATE}:
            sys.setprofile(None)


def script(steps):
    for i in range(steps):
        yield say(f"step {i}", ("write_file", {"name": "note", "content": f"note {i}"}))
    yield say("done")


@pytest.fixture
def counted(bench):
    previous = sys.getprofile()
    yield Counting()
    sys.setprofile(previous)


@pytest.mark.parametrize("notes", [0, 1000], ids=["left out", "summed up"])
@pytest.mark.parametrize("tokens", [4096, 32_768, 10_000_000])
def test_a_late_step_makes_no_more_calls_than_an_early_one(bench, counted, tokens, notes):
    steps = LATE + STEPS + 1
    given = {"max_steps": steps + 1, "context_tokens": tokens, "notes": [say("notes")] * notes}
    b = bench(*script(steps), **given)
    b.watching = counted
    assert b.drive().status is Status.SUCCEEDED
    assert counted.calls[EARLY] > 1000
    assert counted.calls[LATE] < 1.25 * counted.calls[EARLY]


def test_messages_are_made_once_and_sent_again(bench):
    b = bench(*script(6))
    b.drive()
    for before, after in zip(b.model.requests, b.model.requests[1:], strict=False):
        kept = zip(before.messages, after.messages, strict=False)
        assert all(one is other for one, other in kept)
        assert len(after.messages) == len(before.messages) + 2


def test_the_tools_of_jobs_in_one_process_are_described_once(bench):
    loops = [assembly.build(b.settings, b.model, b.place) for b in (bench(), bench())]
    one, other = (loop.tools.schemas for loop in loops)
    assert all(
        a["function"]["parameters"] is b["function"]["parameters"]
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("tokens", [1024, 32_768])
def test_a_history_that_is_read_again_makes_the_same_requests(bench, tokens):
    b = bench(*script(40), say(""), max_steps=60, context_tokens=tokens)
    b.drive()
    window = Window(tokens, b.settings.max_output_tokens)
    grown = b.model.requests[-1]
    events = b.store.load(b.job.id)[1]
    until = max(i for i, event in enumerate(events) if event.kind == "reply")
    again = type(b.history)(b.job, events[:until])
    assert window.request(again, grown.tools).messages == grown.messages
