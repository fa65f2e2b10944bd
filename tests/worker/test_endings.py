"""Budgets and unusable replies: each limit is named, and a last turn asks for what there is."""

from __future__ import annotations

import itertools

import pytest

from worker.budget import spent
from worker.errors import Stop
from worker.history import History
from worker.messages import Budget, FinishReason, Job, ResultStatus, Status
from worker.testing import ok, say


def many(count=50):
    return [say(None, ("python_interpreter", {"code": f"step({i})"})) for i in range(count)]


def ticking(step_s):
    times = itertools.count()
    return lambda: 1000.0 + next(times) * step_s


USED = {"input_tokens": 90, "output_tokens": 10, "cost": 0.5}


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_steps": 3}, "max_steps: 3 of 3 steps used"),
        ({"max_tokens": 250}, "max_tokens: 300 of 250 tokens used"),
        ({"max_tool_calls": 3}, "max_tool_calls: 3 of 3 calls used"),
        ({"max_cost": 1.2}, "max_cost: 1.5 of 1.2"),
    ],
)
def test_the_limit_that_ended_a_job_is_named(bench, settings, limit):
    script = [{**m, "usage": USED} for m in many()]
    script[3] = say("About 4.", usage=USED)
    b = bench(*script, **settings)
    job = b.drive()
    assert (job.status, job.finish_reason) == (Status.FAILED, FinishReason.BUDGET)
    assert job.answer == "About 4."
    assert job.error.type == "BudgetSpent"
    assert limit in job.error.message
    assert job.steps == 4
    assert b.model.requests[-1].tools == ()
    assert "last turn" in b.model.requests[-1].messages[-1].text
    assert len(b.sandbox.ran) == 3


def test_time_ends_a_job_too(bench):
    b = bench(*many(), job_timeout_s=100.0)
    b.clock = ticking(1.0)
    job = b.drive()
    assert job.finish_reason is FinishReason.BUDGET
    assert "timeout_s" in job.error.message


def test_waiting_counts_as_time_but_not_as_work(bench):
    job = Job(id="a", goal="g", budget=Budget(timeout_s=100, max_working_s=50))
    history = History(job)
    history.started_at, history.waited_s = 0.0, 30.0
    rows = {s.limit: s.used for s in spent(history, 60.0)}
    assert rows == {"timeout_s": 60.0, "max_working_s": 30.0}
    assert history.time_left_s(60.0) == 20.0


def test_what_is_left_can_be_shown(bench):
    b = bench(*many(2), say("done"), max_steps=10)
    b.drive()
    steps = next(iter(spent(b.history, 0.0)))
    assert (steps.limit, steps.left, steps.is_over) == ("max_steps", 7, False)
    assert str(steps) == "max_steps: 3 of 10 steps used"


def test_an_answer_with_the_last_step_is_an_answer(bench):
    job = bench(*many(2), say("4"), max_steps=3).drive()
    assert (job.finish_reason, job.answer, job.steps) == (FinishReason.ANSWERED, "4", 3)


def test_code_with_the_last_step_is_an_answer_too(bench):
    code = "```python\nprint(1)\n```"
    job = bench(*many(2), say(code), max_steps=3).drive()
    assert (job.finish_reason, job.answer, job.steps) == (FinishReason.ANSWERED, code, 3)


def test_a_last_turn_that_calls_tools_all_the_same_runs_nothing(bench):
    b = bench(*many(), max_steps=2)
    job = b.drive()
    assert job.finish_reason is FinishReason.BUDGET
    assert job.steps == 3
    assert len(b.sandbox.ran) == 2
    assert b.results[-1].status is ResultStatus.SKIPPED
    assert job.answer is None


def test_without_a_last_word_there_is_no_answer(bench):
    script = [say("Let me look.", ("shell", {"command": f"{i}"})) for i in range(2)]
    assert bench(*script, say(""), max_steps=2).drive().answer is None


def test_a_model_that_fails_in_the_last_turn_does_not_hide_the_budget(bench):
    job = bench(*many(2), Stop("no more"), max_steps=2).drive()
    assert (job.finish_reason, job.error.type) == (FinishReason.BUDGET, "BudgetSpent")


def test_the_calls_of_a_turn_stop_when_the_calls_are_spent(bench):
    calls = [("shell", {"command": str(i)}) for i in range(5)]
    b = bench(say(None, *calls), say("done"), max_tool_calls=2)
    b.drive()
    assert b.sandbox.ran == ["0", "1"]
    assert [r.status for r in b.results] == [ResultStatus.OK] * 2 + [ResultStatus.SKIPPED] * 3
    assert "budget" in b.results[-1].text


# ---- replies that are no use


def test_empty_replies_are_nudged_twice_then_it_is_a_failure(bench):
    b = bench(say(None, reasoning_content="I should call the tool"), repeat_last=True)
    job = b.drive()
    assert (job.status, job.finish_reason) == (Status.FAILED, FinishReason.FAILED)
    assert job.error.type == "EmptyReplies"
    assert (job.answer, job.steps) == (None, 3)
    assert len(b.notices) == 2


@pytest.mark.parametrize(
    "fault", [say(""), say("<tool_call>{"), say("half of", finish_reason="length")]
)
def test_observing_sends_back_what_cannot_be_used_and_ends_nothing(bench, fault):
    b = bench(*[fault] * 5, say("done"), loop_observe=True)
    assert b.drive().answer == "done"
    assert len(b.notices) == 5
    stops = [e.text for e in b.watching.of("remark")]
    assert len(stops) == 3
    assert all("observing): would stop: " in text for text in stops)


def test_observing_takes_a_reply_that_repeats_itself_as_it_is(bench):
    text = "I will load the data. " * 40
    b = bench(say(text), loop_observe=True)
    assert b.drive().answer == text.strip()
    assert "repeats itself" in b.watching.of("remark")[0].text


def test_an_empty_reply_between_others_is_forgiven(bench):
    script = [m for call in many(4) for m in (say(""), call)]
    assert bench(*script, say("done")).drive().answer == "done"


def test_nothing_of_a_reply_that_was_cut_off_runs(bench):
    cut = say(None, ("shell", {"command": "rm -rf tmp"}), ("shell", {"command": "ls"}))
    b = bench({**cut, "finish_reason": "length"}, say("done"))
    assert b.drive().answer == "done"
    assert b.sandbox.ran == []
    assert all("Send it again, shorter" in r.text for r in b.results)


def test_three_cut_replies_in_a_row_end_the_job(bench):
    b = bench(
        {**say(None, ("shell", {"command": "x"})), "finish_reason": "length"}, repeat_last=True
    )
    job = b.drive()
    assert (job.finish_reason, job.error.type) == (FinishReason.FAILED, "RepliesCutOff")
    assert "max_output_tokens" in job.error.message
    assert job.steps == 3


def test_a_text_that_was_cut_off_is_no_answer(bench):
    b = bench(say("The answer is", finish_reason="length"), say("The answer is 4."))
    assert b.drive().answer == "The answer is 4."


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "python_interpreter", "arguments": {"code": "print(1</tool_call>',
        "<|tool_call|>python",
        "[TOOL_CALLS] shell",
        "<function=shell>ls</function>",
    ],
)
def test_unreadable_markup_is_sent_back_and_never_the_answer(bench, text):
    b = bench(say(text), say("done"))
    assert b.drive().answer == "done"
    assert "python_interpreter" in b.notices[0].text
    job = bench(say(text), repeat_last=True).drive()
    assert (job.finish_reason, job.answer) == (FinishReason.LOOP, None)
    assert job.steps == 3


def test_a_reply_that_repeats_itself_is_sent_back(bench):
    b = bench(say("I will now look at it. " * 40), say("done"))
    assert b.drive().answer == "done"


def test_a_model_that_only_talks_is_taken_at_its_word(bench):
    job = bench(say("Sure! Here is the code: print(1)"), repeat_last=True).drive()
    assert (job.finish_reason, job.steps) == (FinishReason.ANSWERED, 1)


def test_observers_hear_of_every_event_in_order(bench):
    b = bench(say(None, ("shell", {"command": "x"})), say("done"), respond=lambda *_: ok("y"))
    b.drive()
    kinds = [e.kind for e in b.watching.events]
    assert kinds == ["message", "message", "reply", "call", "result", "reply", "ended"]
    assert b.watching.asked == 2
    assert b.store.load(b.job.id)[1] == tuple(b.watching.events)
