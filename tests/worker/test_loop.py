"""The loop: what it asks, runs, stores, and how it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import worker.loop
from sandbox.errors import SandboxLost, SandboxUnavailable
from worker.errors import LeaseLost, Pause, SkipCall, Stop
from worker.hooks import Hook, Hooks
from worker.messages import FinishReason, ResultStatus, Role, Status
from worker.testing import ok, say


def python(code="1"):
    return ("python_interpreter", {"code": code})


def test_the_loop_fits_on_a_screen():
    assert len(Path(worker.loop.__file__).read_text().splitlines()) <= 150


def test_a_reply_without_calls_is_the_answer_whatever_its_text(bench):
    answer = 'It is FINAL:\n```python\nprint(4)\n```\nsee "above"'
    job = bench(say(answer)).drive()
    assert (job.status, job.finish_reason) == (Status.SUCCEEDED, FinishReason.ANSWERED)
    assert job.answer == answer
    assert job.error is None


def test_calls_run_in_order_and_their_results_reach_the_model(bench):
    b = bench(say("first", python("a"), python("b")), say(None, python("c")), say("done"))
    job = b.drive()
    assert b.sandbox.ran == ["a", "b", "c"]
    assert job.steps == 3
    last = b.model.requests[-1].messages
    assert [m.role.value for m in last] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
    assert "output:\nc" in last[-1].text


def test_every_call_that_is_sent_back_has_its_result(bench):
    b = bench(say(None, python("a"), ("nothing", {})), say(None, python("x")), say("done"))
    assert b.drive().answer == "done"
    messages = b.model.requests[-1].messages
    asked = [call.id for message in messages for call in message.tool_calls]
    assert len(set(asked)) == 3
    assert [m.tool_call_id for m in messages if m.role is Role.TOOL] == asked


def test_ids_of_the_endpoint_are_replaced_by_unique_short_ones(bench):
    twice = say(None, python("a"), python("b"))
    for call in twice["tool_calls"]:
        call["id"] = "x" * 43
    b = bench(twice, twice, say("done"))
    b.drive()
    ids = [call.id for turn in b.history.steps for call in turn.calls]
    assert len(set(ids)) == 4
    assert all(len(i) == 9 and i.isalnum() for i in ids)


def test_of_a_flood_of_calls_the_first_run_and_the_model_is_told(bench):
    b = bench(say(None, *[python(str(i)) for i in range(300)]), say("done"))
    assert b.drive().answer == "done"
    assert b.sandbox.ran == [str(i) for i in range(128)]
    assert "172 calls behind this one were dropped" in b.results[-1].text
    assert len(b.model.requests[-1].messages[2].tool_calls) == 128


def test_the_intent_of_a_call_is_stored_before_it_runs(bench):
    seen = []

    def respond(sandbox, kind, text):
        seen.extend(e.kind for e in b.watching.events)
        return ok()

    b = bench(say(None, python()), say("done"), respond=respond)
    b.drive()
    assert seen == ["message", "message", "reply", "call"]


def test_a_cancelled_job_gives_every_call_its_result(bench):
    cancelled = threading.Event()

    def respond(sandbox, kind, text):
        cancelled.set()
        return ok("ran")

    b = bench(say(None, python("a"), python("b"), python("c")), say("done"), respond=respond)
    b.is_cancelled = cancelled.is_set
    job = b.drive()
    assert (job.status, job.finish_reason) == (Status.CANCELLED, FinishReason.CANCELLED)
    assert [r.status for r in b.results] == [ResultStatus.OK] + [ResultStatus.CANCELLED] * 2
    assert b.sandbox.ran == ["a"]


def test_a_running_call_is_cancelled_within_a_second(bench):
    cancelled = threading.Event()

    def respond(sandbox, kind, text):
        cancelled.set()
        assert sandbox.cancelled.wait(1.0)
        return ok("stopped early")

    b = bench(say(None, python("a")), say("done"), respond=respond)
    b.is_cancelled = cancelled.is_set
    assert b.drive().status is Status.CANCELLED


def test_a_cancel_that_came_too_early_is_said_again(bench):
    cancelled = threading.Event()

    def respond(sandbox, kind, text):
        cancelled.set()
        assert sandbox.cancelled.wait(1.0)
        sandbox.cancelled.clear()  # nothing was running yet
        assert sandbox.cancelled.wait(1.0)
        return ok("stopped early")

    b = bench(say(None, python("a")), say("done"), respond=respond)
    b.is_cancelled = cancelled.is_set
    assert b.drive().status is Status.CANCELLED


def test_a_cancel_that_nobody_hears_is_the_failure_of_the_call_alone(bench):
    cancelled = threading.Event()

    def respond(sandbox, kind, text):
        sandbox.is_lost = True
        cancelled.set()
        assert sandbox.cancelled.wait(1.0)
        return ok()

    b = bench(say(None, python("a")), say("done"), respond=respond)
    b.is_cancelled = cancelled.is_set
    with pytest.raises(SandboxLost):  # and no thread has died of it
        b.drive()


def test_infrastructure_failure_leaves_the_loop_and_is_never_shown_to_the_model(bench):
    def respond(sandbox, kind, text):
        raise SandboxUnavailable("the engine is away")

    b = bench(say(None, python("a")), say("done"), respond=respond)
    with pytest.raises(SandboxUnavailable):
        b.drive()
    assert b.results == []
    b.sandbox.respond = lambda *_: ok("back")
    assert b.drive().answer == "done"
    assert "engine" not in b.model.requests[-1].messages[-1].text


def test_a_worker_that_lost_its_lease_writes_nothing_more(bench):
    def respond(sandbox, kind, text):
        b.store.claim(b.job.id)
        return ok()

    b = bench(say(None, python("a")), say("done"), respond=respond)
    with pytest.raises(LeaseLost):
        b.drive()
    assert b.results == []
    assert len(b.model.requests) == 1


class Trace(Hook):
    def __init__(self, name, log):
        self.name, self.log = name, log

    def before_model(self, run):
        self.log.append(f"{self.name} before model")

    def after_model(self, run, reply):
        self.log.append(f"{self.name} after model")

    def before_tool(self, run, call):
        self.log.append(f"{self.name} before tool")

    def after_tool(self, run, call, result):
        self.log.append(f"{self.name} after tool")


def drive_with(b, *hooks):
    built = worker.assembly.build(b.settings, b.model, b.place)
    loop = worker.loop.Loop(built.model, built.tools, Hooks(hooks), built.window)
    return loop.drive(b.run())


def test_hooks_run_in_order_before_and_in_reverse_after(bench):
    log = []
    b = bench(say(None, python("a")), say("done"))
    drive_with(b, Trace("one", log), Trace("two", log))
    assert log[:8] == [
        "one before model",
        "two before model",
        "two after model",
        "one after model",
        "one before tool",
        "two before tool",
        "two after tool",
        "one after tool",
    ]


def test_a_hook_can_skip_a_call_with_a_text_for_the_model(bench):
    class Deny(Hook):
        def before_tool(self, run, call):
            raise SkipCall("not allowed by policy")

    b = bench(say(None, python("a")), say("done"))
    assert drive_with(b, Deny()).answer == "done"
    assert b.sandbox.ran == []
    assert "not allowed by policy" in b.results[0].text
    assert b.results[0].status is ResultStatus.SKIPPED


@pytest.mark.parametrize("moment", ["before_model", "after_model", "before_tool", "after_tool"])
def test_a_broken_hook_ends_the_job_and_the_call_it_guards_does_not_run(bench, moment):
    def broken(self, *args):
        raise ZeroDivisionError("oops")

    hook = type("Broken", (Hook,), {moment: broken})()
    b = bench(say(None, python("a")), say("done"))
    job = drive_with(b, hook)
    assert (job.status, job.error.type) == (Status.FAILED, "HookFailed")
    assert "Broken" in job.error.message
    assert b.sandbox.ran == (["a"] if moment == "after_tool" else [])
    assert len(b.results) == (0 if moment == "before_model" else 1)


def test_pause_leaves_the_job_to_be_driven_again(bench):
    allowed = []

    class Ask(Hook):
        def before_tool(self, run, call):
            if not allowed:
                raise Pause("somebody must approve")

    b = bench(say(None, python("a")), say("done"))
    assert drive_with(b, Ask()).status is Status.RUNNING
    allowed.append(True)
    assert drive_with(b, Ask()).answer == "done"
    assert b.sandbox.ran == ["a"]


def test_stop_from_a_hook_names_its_error(bench):
    class Halt(Hook):
        def before_model(self, run):
            raise Stop("enough", kind="Enough")

    job = drive_with(bench(say("x")), Halt())
    assert (job.finish_reason, job.error.type) == (FinishReason.FAILED, "Enough")


def test_usage_and_cost_are_summed_over_replies(bench):
    used = {"input_tokens": 10, "output_tokens": 5, "cost": 0.25}
    b = bench(say(None, python("a"), usage=used), say("done", usage=used))
    usage = b.drive().usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost) == (20, 10, 0.5)


def test_a_job_is_summarised_with_the_fixed_keys(bench):
    summary = bench(say("done")).drive().summary()
    assert list(summary) == [
        "id",
        "status",
        "finish_reason",
        "answer",
        "steps",
        "usage",
        "artifacts",
        "error",
    ]
    assert summary["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}
