"""Loops are nudged, blocked and stopped; what only looks like one is left alone."""

from __future__ import annotations

import io
import itertools
import json
import time

import pytest
from rich.console import Console

from sandbox.types import ErrorInfo, Execution
from worker import assembly
from worker.errors import SkipCall
from worker.fingerprints import canonical, lasting, same_call
from worker.hooks import Hook
from worker.messages import FinishReason, ResultStatus, Status, ToolCall
from worker.repetition import repeats_itself
from worker.testing import ok, say
from worker.trace import Trace


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


# ---- what is the same


@pytest.mark.parametrize(
    ("tool", "one", "two"),
    [
        ("python_interpreter", {"code": "f(1)"}, {"code": "f(1)  # again"}),
        ("python_interpreter", {"code": "f(1)"}, {"code": "f( 1 )\n", "timeout_s": 99}),
        ("python_interpreter", {"code": "f(1"}, {"code": "f(1   # not closed\n\n"}),
        ("python_interpreter", {"code": "if x:\n    f()"}, {"code": "if x:\n  f()"}),
        ("shell", {"command": "ls -l"}, {"command": "ls -l   # try again", "timeout_s": 3}),
        ("shell", {"command": "a\nb"}, {"command": "a   \n\n  # then\n  b"}),
        ("search_files", {"pattern": "x", "path": "."}, {"path": ".", "pattern": "x"}),
    ],
)
def test_a_call_that_is_only_written_otherwise_is_the_same(tool, one, two):
    assert same_call(call(tool, json.dumps(one))) == same_call(call(tool, json.dumps(two)))


@pytest.mark.parametrize(
    ("tool", "one", "two"),
    [
        ("shell", {"command": "echo '# a'"}, {"command": "echo '# b'"}),
        ("shell", {"command": "curl x#a"}, {"command": "curl x#b"}),
        ("shell", {"command": "a"}, {"command": "a b"}),
        ("python_interpreter", {"code": "f('# a')"}, {"code": "f('# b')"}),
        ("python_interpreter", {"code": "x"}, {"code": "y"}),
        ("read_file", {"name": "a "}, {"name": "a"}),
    ],
)
def test_a_call_that_asks_for_something_else_is_not(tool, one, two):
    assert same_call(call(tool, json.dumps(one))) != same_call(call(tool, json.dumps(two)))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("<f at 0x7f0a1b2c3d4e>", "<f at 0x7f99990a3d40>"),
        ("1 failed in 0.53s", "1 failed in 12.01s"),
        ("took 3 ms", "took 250 ms"),
        ("real\t0m0.003s", "real\t0m1.412s"),
        ("2026-11-30 06:44:12,345 ERROR x", "2026-11-30 06:45:01,001 ERROR x"),
        ("2026-11-30T06:44:12Z down", "2026-11-30T07:00:00Z down"),
        ("[06:44:12] retry", "[06:44:59] retry"),
        ("cannot open /tmp/tmpab12cd_9/x", "cannot open /tmp/tmp9f_k2xyz/x"),
        ("/tmp/tmp.a1B2c3D4e5: gone", "/tmp/tmp.Zz9Yy8Xx7W: gone"),
        ("[1] 4242", "[1] 4711"),
        ("process 4242 died", "process 4711 died"),
        ("PID: 42", "PID: 7"),
        ("bash: line 1: 4242 Killed   x", "bash: line 1: 51 Killed   x"),
        ("id 0b1c2d3e-0000-4000-8000-0123456789ab", "id ffffffff-1111-4222-9333-0123456789ab"),
    ],
)
def test_what_differs_in_every_run_is_no_change(one, two):
    assert lasting(one) == lasting(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("12%", "13%"),
        ("step 3 of 9", "step 4 of 9"),
        ("45/100 [00:12<00:15]", "46/100 [00:12<00:15]"),
        ("12 rows", "13 rows"),
        ("2026-11-30", "2026-12-01"),
        ("mean 3.51", "mean 3.52"),
        ("line 1: x", "line 2: x"),
        ("process 300 of 900", "process 301 of 900"),
        ("process 3 done", "process 4 done"),
        ("1.5 seasons", "2.5 seasons"),
        ("", " x"),
    ],
)
def test_what_shows_that_something_moves_is_a_change(one, two):
    assert lasting(one) != lasting(two)


def test_only_the_ends_of_a_long_outcome_are_looked_through():
    long = "took 12.3456789 seconds; " * 1000
    assert lasting(long).startswith("took <duration>; ")
    assert lasting(long).endswith("took <duration>; ")
    assert "12.3456789" in lasting(long)
    assert lasting(long + "a") != lasting(long + "b")


@pytest.mark.parametrize("piece", ["# ", "tail ", "'", "sleep;", ";", "if ", "(", "x = 1\n", "a"])
def test_calls_of_any_size_are_compared_quickly(bench, piece):
    text = piece * (400_000 // len(piece)) + "'"
    one = ("python_interpreter", {"code": text}), ("shell", {"command": text})
    b = bench(*[say(None, *one)] * 3, say("done"), respond=lambda *_: ok("a"))
    began = time.monotonic()
    assert b.drive().answer == "done"
    assert time.monotonic() - began < 10


def test_a_reply_of_very_many_calls_costs_no_more_than_each_of_them(bench):
    calls = [("shell", {"command": f"look {i}"}) for i in range(1500)]
    b = bench(say(None, *calls), say("done"))
    canonical.cache_clear()
    assert b.drive().answer == "done"
    assert canonical.cache_info().misses < 5 * len(calls)


# ---- weak models


def bad(kind="KeyError", message="'Amount'"):
    return Execution(
        outcome="error", error=ErrorInfo(type=kind, message=message), interpreter="kept"
    )


def test_a_space_or_a_comment_more_each_time_is_the_same_call(bench):
    b = bench(
        *[python("df['Amount']" + " " * i + f"  # try {i}") for i in range(12)],
        respond=lambda *_: bad(),
    )
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert len(b.sandbox.ran) == 3
    assert job.error.message == (
        "the same call gave the same result 6 times: python_interpreter(df['Amount'] # try 5), "
        "which gave: KeyError: 'Amount'"
    )


def test_another_time_limit_is_no_other_call(bench):
    def late(sandbox, kind, text):
        return Execution(outcome="timeout", limit="time limit of 5 s", interpreter="kept")

    b = bench(*[python("train()", timeout_s=5 + i) for i in range(12)], respond=late)
    assert b.drive().finish_reason is FinishReason.LOOP
    assert len(b.sandbox.ran) == 3


def test_two_failing_variants_in_turn_are_a_cycle(bench):
    b = bench(
        *[python("df['Amount']"), python("df['amount']")] * 9,
        respond=lambda _, __, text: bad(message=text[3:-1]),
    )
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert job.error.message == (
        "2 steps repeated 3 times in the same order: python_interpreter(df['Amount']), "
        "python_interpreter(df['amount'])"
    )
    assert len(b.sandbox.ran) == 6


def test_two_errors_in_turn_with_code_that_is_never_the_same_are_one_too(bench):
    errors = itertools.cycle(["'Amount'", "'amount'"])
    b = bench(
        *[python(f"x{i} = df['Amount']") for i in range(40)],
        respond=lambda *_: bad(message=next(errors)),
        max_steps=50,
    )
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert "the same error came 8 times: KeyError: 'Amount'" in job.error.message
    assert len(b.sandbox.ran) == 15


def test_success_in_between_begins_the_count_of_errors_anew(bench):
    outcomes = itertools.cycle([bad(), bad(), bad(), ok("fine")])
    b = bench(
        *[python(f"f({i})") for i in range(24)], say("done"), respond=lambda *_: next(outcomes)
    )
    assert b.drive().answer == "done"
    assert b.notices == []


def test_a_cycle_with_a_step_that_is_repeated_inside_is_seen(bench):
    one, two = python("a"), python("b")
    b = bench(*[one, one, two, one, two, two] * 6, loop_block=9, loop_stop=9)
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert "2 steps repeated 3 times" in job.error.message


def test_calls_whose_arguments_cannot_be_read_count_whatever_is_in_them(bench):
    b = bench(
        *[
            say(None, ("python_interpreter", f'{{"code": "print({i})" "x": {i}}}'))
            for i in range(20)
        ]
    )
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert "the same error came 8 times: the arguments" in job.error.message


def test_calls_with_wrong_arguments_count_whatever_the_value(bench):
    b = bench(*[say(None, ("shell", {"cmd": f"ls {i}"})) for i in range(20)])
    job = b.drive()
    assert "the same error came 8 times: the arguments of shell are not valid" in job.error.message


class Deny(Hook):
    """Lets no call run, as a rule may that people have made."""

    def before_tool(self, run, call):
        raise SkipCall("denied: nothing may be removed here")


def denied(bench, *messages):
    b = bench(*messages)
    loop = assembly.build(b.settings, b.model, b.place, more=[Deny()])
    return b, loop.drive(b.run())


def test_a_denied_call_that_comes_again_is_a_loop_and_its_denial_is_quoted(bench):
    b, job = denied(bench, *[say(None, ("shell", {"command": "rm x"}))] * 9)
    assert job.finish_reason is FinishReason.LOOP
    assert "shell(rm x), which gave: denied: nothing may be removed here" in job.error.message
    assert "denied: nothing" in b.results[3].text.split("result was:")[1]
    assert b.sandbox.ran == []


def test_denied_calls_that_differ_are_the_same_error(bench):
    _, job = denied(bench, *[say(None, ("shell", {"command": f"rm {i}"})) for i in range(20)])
    assert "the same error came 8 times: denied: nothing may" in job.error.message


def test_a_loop_of_a_tool_that_runs_nothing_is_seen(bench):
    b = bench(*[say(None, ("read_file", {"name": "nothing.txt"}))] * 9)
    job = b.drive()
    assert job.finish_reason is FinishReason.LOOP
    assert "nothing.txt" in job.error.message


# ---- polling


def test_waiting_and_looking_in_turn_gets_the_patience_of_a_poll(bench):
    b = bench(
        *[shell("sleep 20"), shell("cat state")] * 8,
        say("done"),
        respond=lambda _, __, text: ok("" if "sleep" in text else "not ready", exit_code=0),
    )
    assert b.drive().answer == "done"


@pytest.mark.parametrize(
    "command",
    [
        "until grep -q ready state; do sleep 2; done; echo",
        "for i in 1 2 3; do\n  sleep 5\ndone",
        "while kill -0 42; do true; done",
        "if pgrep -f train.py; then echo yes; fi",
        "! pgrep train",
    ],
)
def test_waiting_inside_of_a_shell_loop_is_a_poll(bench, command):
    b = bench(*[shell(command)] * 12, say("done"), respond=lambda *_: ok("5"))
    assert b.drive().answer == "done"


def test_a_check_that_only_says_not_yet_by_its_exit_code_is_a_poll(bench):
    no = ok("", outcome="error", exit_code=1)
    for command in ("sleep 20; grep done state", "while sleep 1; do test -f x; done", "pgrep x"):
        b = bench(*[shell(command)] * 12, say("done"), respond=lambda *_: no)
        assert b.drive().answer == "done"
        assert "Wait longer" in b.notices[0].text


def test_a_check_that_fails_with_words_is_no_poll(bench):
    no = ok("no such file", outcome="error", exit_code=1)
    b = bench(shell("sleep 20; cat state"), repeat_last=True, respond=lambda *_: no)
    assert "6 times" in b.drive().error.message


@pytest.mark.parametrize(
    ("message", "output"),
    [
        (python("print(df.tail())"), "a 1"),
        (shell("tail -3 data.csv"), "a,1"),
        (python("print(df)"), "status\npending\ndone"),
    ],
)
def test_looking_at_data_is_no_poll(bench, message, output):
    b = bench(message, repeat_last=True, respond=lambda *_: ok(output))
    assert "6 times" in b.drive().error.message


def test_progress_in_per_cent_is_progress(bench):
    count = itertools.count()
    b = bench(
        *[shell("tail -1 build.log")] * 20,
        say("done"),
        respond=lambda *_: ok(f"06:44:{next(count):02d} {next(count)}% done", exit_code=0),
    )
    assert b.drive().answer == "done"
    assert b.notices == []


def test_a_poll_that_never_ends_is_stopped_too(bench):
    b = bench(
        shell("tail -1 build.log"),
        repeat_last=True,
        respond=lambda *_: ok("(still running)", exit_code=0),
    )
    job = b.drive()
    assert "18 times: shell(tail -1 build.log), which gave: (still running)" in job.error.message


# ---- every threshold


@pytest.mark.parametrize(
    ("setting", "value", "default", "changed"),
    [
        ("loop_nudge", 3, "repeat:2", "repeat:3"),
        ("loop_block", 3, 3, 2),
        ("loop_stop", 5, "6 times", "5 times"),
    ],
)
def test_each_threshold_of_a_repeated_call_has_its_effect(bench, setting, value, default, changed):
    def play(**settings):
        b = bench(python("1"), repeat_last=True, **settings)
        job = b.drive()
        return [b.notices[0].reason, len(b.sandbox.ran), job.error.message]

    before, after = play(), play(**{setting: value})
    assert any(default == x or (isinstance(x, str) and str(default) in x) for x in before)
    assert any(changed == x or (isinstance(x, str) and str(changed) in x) for x in after)
    assert before != after


def test_each_threshold_of_a_repeated_error_has_its_effect(bench):
    b = bench(
        *[python(f"f({i})") for i in range(20)],
        respond=nope,
        loop_error_nudge=2,
        loop_error_stop=5,
    )
    assert "5 times" in b.drive().error.message
    assert b.notices[0].reason == "error:2"


def test_each_threshold_of_a_cycle_has_its_effect(bench):
    b = bench(*[python("a"), python("b"), python("c")] * 9, loop_cycle_repeats=4)
    assert "3 steps repeated 4 times" in b.drive().error.message
    short = bench(*[python("a"), python("b"), python("c")] * 5, say("done"), loop_cycle_length=2)
    assert short.drive().answer == "done"


def test_the_patience_with_polls_is_a_setting(bench):
    b = bench(
        shell("tail -1 build.log"),
        repeat_last=True,
        respond=lambda *_: ok("(still running)", exit_code=0),
        loop_poll_factor=1,
    )
    assert "6 times" in b.drive().error.message


def test_observing_says_once_what_would_have_been_done(bench):
    b = bench(*[python(f"f({i})") for i in range(14)], say("done"), respond=nope, loop_observe=True)
    assert b.drive().answer == "done"
    remarks = [e.text for e in b.watching.of("remark")]
    assert remarks == [
        "loop detection (observing): error:4",
        "loop detection (observing): would stop: the same error came 8 times: "
        "ModuleNotFoundError: No module named 'nope', the last time from python_interpreter(f(7))",
    ]


def test_the_end_of_a_loop_is_told_to_people(bench):
    b = bench(python("import nope"), repeat_last=True, respond=nope)
    screen = io.StringIO()
    b.watching = Trace(Console(file=screen, width=100))
    b.drive()
    end = " ".join(screen.getvalue().rpartition("✗ loop")[2].split())
    assert "the same call gave the same result 6 times: python_interpreter(import nope)" in end
    assert "ModuleNotFoundError: No module named 'nope'" in end
