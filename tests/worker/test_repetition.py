"""Loops are nudged, blocked and stopped; what only looks like one is left alone."""

from __future__ import annotations

import itertools
import json

import pytest

from sandbox.types import ErrorInfo, Execution
from worker.messages import FinishReason, ResultStatus, Status, ToolCall
from worker.repetition import repeats_itself, same_call
from worker.testing import ok, say


def python(code, **extra):
    return say(None, ("python_interpreter", {"code": code, **extra}))


def shell(command):
    return say(None, ("shell", {"command": command}))


def nope(sandbox, kind, text):
    error = ErrorInfo(type="ModuleNotFoundError", message="No module named 'nope'")
    return Execution(outcome="error", error=error, interpreter="kept")


def call(name, arguments):
    return ToolCall(id="x", name=name, arguments=arguments)


def test_comments_space_and_order_do_not_make_another_call():
    one = call("python_interpreter", '{"code": "x = 1  # why\\n\\nprint( x )", "timeout_s": 5}')
    two = call("python_interpreter", '{"timeout_s": 5, "code": "x=1\\nprint(x)"}')
    assert same_call(one) == same_call(two)
    assert same_call(call("shell", '{"command": "ls   -l"}')) == same_call(
        call("shell", '{"command": "# look\\nls -l"}')
    )


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("if x:\n    a()\nb()", "if x:\n    a()\n    b()"),
        ("print('a b')", "print('ab')"),
        ("x = 1", "x = 2"),
    ],
)
def test_code_that_does_something_else_is_another_call(one, two):
    calls = [call("python_interpreter", json.dumps({"code": code})) for code in (one, two)]
    assert same_call(calls[0]) != same_call(calls[1])


def test_the_same_failing_call_is_nudged_blocked_and_stopped(bench):
    b = bench(python("import nope"), repeat_last=True, respond=nope)
    job = b.drive()
    assert (job.status, job.finish_reason) == (Status.FAILED, FinishReason.LOOP)
    assert job.error.type == "LoopDetected"
    assert "6 times" in job.error.message
    assert len(b.sandbox.ran) == 3
    assert [n.reason for n in b.notices] == ["repeat:2", "loop"]
    statuses = [r.status for r in b.results]
    assert statuses == [ResultStatus.ERROR] * 3 + [ResultStatus.SKIPPED] * 4
    assert "ModuleNotFoundError" in b.results[3].text  # the earlier result is quoted
    assert job.steps == 7  # six, and the last turn without tools
    assert b.model.requests[-1].tools == ()


def test_the_last_turn_of_a_loop_may_give_the_answer_so_far(bench):
    b = bench(*[python("1")] * 6, say("It is 4."))
    job = b.drive()
    assert (job.finish_reason, job.answer) == (FinishReason.LOOP, "It is 4.")


def test_a_changed_outcome_is_progress(bench):
    count = itertools.count()
    b = bench(
        *[shell("tail -1 build.log")] * 10,
        say("done"),
        respond=lambda *_: ok(f"step {next(count)}", exit_code=0),
    )
    assert b.drive().answer == "done"
    assert b.notices == []


def test_a_poll_that_does_not_change_gets_a_longer_limit_and_better_advice(bench):
    b = bench(
        *[shell("tail -1 build.log")] * 10,
        say("done"),
        respond=lambda *_: ok("(still running)", exit_code=0),
    )
    assert b.drive().answer == "done"
    assert len(b.sandbox.ran) == 10
    assert [n.reason for n in b.notices] == ["repeat:6"]
    assert "sleep" in b.notices[0].text


def test_a_call_beside_something_that_runs_is_a_poll(bench):
    b = bench(
        *[shell("cat state")] * 8,
        say("done"),
        respond=lambda *_: ok("x", exit_code=0, background_processes=1),
    )
    assert b.drive().answer == "done"
    assert len(b.sandbox.ran) == 8


def test_addresses_in_the_output_are_no_change(bench):
    count = itertools.count(0x7F0000000000)
    b = bench(
        python("print(f)"),
        repeat_last=True,
        respond=lambda *_: ok(f"<function f at {next(count):#x}>"),
    )
    assert b.drive().finish_reason is FinishReason.LOOP


def test_working_on_between_two_equal_calls_is_no_loop(bench):
    steps = [m for i in range(8) for m in (python(f"edit({i})"), shell("run tests"))]
    b = bench(*steps, say("done"), respond=lambda *_: ok("1 failed", exit_code=1))
    assert b.drive().answer == "done"
    assert b.notices == []


def test_the_same_error_with_different_code_is_nudged_then_stopped(bench):
    b = bench(*[python(f"import nope  \nx{i}") for i in range(20)], respond=nope)
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert "the same error came 8 times" in job.error.message
    assert [n.reason for n in b.notices] == ["error:4", "loop"]
    assert len(b.sandbox.ran) == 8


def test_calls_of_a_tool_that_is_not_there_count_too(bench):
    b = bench(say(None, ("python", {"code": "1"})), repeat_last=True)
    assert b.drive().finish_reason is FinishReason.LOOP
    assert b.history.job.steps == 7


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_cycle_of_steps_is_nudged_and_stopped_at_the_third_time(bench, length):
    cycle = [python(f"step({i})") for i in range(length)]
    b = bench(*cycle * 9)
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert f"{length} steps repeated 3 times" in job.error.message
    assert len(b.sandbox.ran) == 3 * length
    assert b.notices[0].reason.startswith("cycle:")


def test_the_same_call_many_times_in_one_reply_runs_once(bench):
    one = ("shell", {"command": "date"})
    b = bench(say(None, *[one] * 5), say("done"))
    b.drive()
    assert b.sandbox.ran == ["date"]
    assert "result is that of call 1" in b.results[1].text


def test_observing_reports_and_does_nothing(bench):
    b = bench(*[python("1")] * 12, say("done"), loop_observe=True)
    assert b.drive().answer == "done"
    assert len(b.sandbox.ran) == 12
    assert b.notices == []
    remarks = [e.text for e in b.watching.of("remark")]
    assert any("would stop" in r for r in remarks)


def test_thresholds_are_settings(bench):
    b = bench(python("1"), repeat_last=True, loop_nudge=3, loop_block=5, loop_stop=8)
    job = b.drive()
    assert "8 times" in job.error.message
    assert len(b.sandbox.ran) == 4


@pytest.mark.parametrize(
    ("text", "stuck"),
    [
        ("I will load the data. " * 40, True),
        ("The mean is 3.5.\n" * 60, True),
        ("All good. " + "abcdefgh" * 100, True),
        ("-" * 900, False),
        ("| 1 | 2 | 3 |\n" * 60, False),
        ("The answer is 42. " * 3, False),
        (" ".join(str(i) for i in range(500)), False),
        ("", False),
    ],
)
def test_a_text_that_says_one_thing_again_and_again_is_seen(text, stuck):
    assert repeats_itself(text) is stuck
