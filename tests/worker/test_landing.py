"""A last turn whose reply is only the last call again: what that has shown is the answer."""

from __future__ import annotations

import pytest

from sandbox.types import Outcome
from worker.messages import FinishReason
from worker.testing import ok, say

SCHEMA = {"type": "object", "properties": {"mean": {"type": "number"}}, "required": ["mean"]}
CODE = "```python\nprint(4)\n```"
CALL = '{"name": "python_interpreter", "arguments": {"code": "print(4)"}}'
SHOWN = "The mean is 4."


def run(code):
    return say(None, ("python_interpreter", {"code": code}))


MADE = run("print(4)")


@pytest.fixture
def land(bench):
    """The job as it ends with its last turn: `land(call, …, last)`."""

    def work(*turns, shown=f"{SHOWN}\n", **options):
        told = {"output_truncated": options.pop("cut", False)}
        told["outcome"] = options.pop("outcome", Outcome.OK)
        told["value"] = options.pop("value", None)
        steps = len(turns) - 1
        b = bench(*turns, respond=lambda *_: ok(shown, **told), max_steps=steps, **options)
        job = b.drive()
        assert job.finish_reason is FinishReason.BUDGET
        return job

    return work


@pytest.mark.parametrize(
    "last",
    [
        say(CODE),
        say(f"<tool_call>{CALL}</tool_call>"),
        say(CALL),
        MADE,
        say(None, ("python_interpreter", {"code": " print(4)\n", "timeout_s": 5})),
    ],
)
def test_in_every_form_of_the_call_what_it_has_shown_is_the_answer(land, last):
    job = land(run("x = 3"), MADE, last)
    assert job.answer == SHOWN
    assert "the answer is what the last call has shown, which was made again" in job.error.message


def test_a_call_that_was_refused_to_run_again_has_shown_it_before(land):
    job = land(MADE, MADE, MADE, MADE, say(CODE))
    assert job.answer == SHOWN


def test_a_value_counts_where_nothing_was_printed(land):
    assert land(MADE, say(CODE), shown="", value="4.5").answer == "4.5"


@pytest.mark.parametrize(
    ("turns", "last"),
    [
        pytest.param([MADE], f"It is 4.5:\n{CODE}", id="a number is in the words"),
        pytest.param([MADE], f"I am sure. This shows it\n{CODE}", id="a sentence before it"),
        pytest.param([MADE], f"Yes, as this shows:\n{CODE}", id="words before it"),
        pytest.param([MADE], f"{CODE}\nIt shows the mean.", id="words behind it"),
        pytest.param([MADE], "```python\nprint(5)\n```", id="other code"),
        pytest.param([MADE], "```python\nprint( 4 )\n```", id="nearly the same code"),
        pytest.param([MADE, run("x = 5")], CODE, id="another call came behind it"),
        pytest.param(
            [MADE, say(None, ("write_file", {"name": "a.py", "content": "1"}))],
            CODE,
            id="a file was written behind it",
        ),
        pytest.param(
            [run("def f(x):\n    return x\nf(4)")],
            "```python\ndef f(x):\n    return x\nf(4)\n```",
            id="it defines a function",
        ),
    ],
)
def test_what_can_be_meant_otherwise_stays_as_it_is(land, turns, last):
    job = land(*turns, say(last))
    assert job.answer == last
    assert "has shown" not in job.error.message


@pytest.mark.parametrize(
    "options",
    [
        {"outcome": Outcome.ERROR},
        {"shown": ""},
        {"shown": "[]\n"},
        {"shown": "x" * 4001},
        {"cut": True},
        {"shown": '{"name": "shell", "arguments": {"command": "ls"}}'},
        {"goal": "Write a Python script that prints 4."},
    ],
)
def test_what_has_shown_nothing_that_is_an_answer_leaves_the_reply(land, options):
    job = land(MADE, say(CODE), **options)
    assert job.answer == CODE
    assert "has shown" not in job.error.message


def test_an_answer_that_was_sent_back_is_worth_more(land):
    job = land(MADE, say("The mean is 1234.5."), MADE, MADE, shown="a table")
    assert job.answer == "The mean is 1234.5."
    assert "the answer is one that was sent back" in job.error.message
    assert "has shown" not in job.error.message


@pytest.mark.parametrize(("shown", "is_fit"), [('{"mean": 4}', True), ("4", False)])
def test_it_is_checked_like_any_answer(land, shown, is_fit):
    job = land(MADE, say(CODE), shown=shown, answer_schema=SCHEMA)
    assert job.answer == shown
    assert ("the answer does not fit the schema" in job.error.message) != is_fit
