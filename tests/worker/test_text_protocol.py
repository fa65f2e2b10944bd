"""Calls that come as text are calls; prose that mentions them is not."""

from __future__ import annotations

import json

import pytest

from worker.arguments import read_arguments
from worker.messages import ResultStatus
from worker.models.base import Model, Request
from worker.models.text_protocol import TextCalls, calls_in
from worker.testing import ScriptedModel, say

NAMES = frozenset({"python_interpreter", "shell"})
ONE = '{"name": "python_interpreter", "arguments": {"code": "print(1)"}}'


def read(text):
    said, calls = calls_in(text, NAMES)
    return said, [(c.name, read_arguments(c.arguments)[0]) for c in calls]


CALL = [("python_interpreter", {"code": "print(1)"})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"<tool_call>{ONE}</tool_call>", ""),
        (f"<tool_call>\n{ONE}\n</tool_call>\n", ""),
        (f"I will look.\n<tool_call>\n{ONE}\n</tool_call>", "I will look."),
        (f"<tool_call>\n{ONE}", ""),
        (f"```json\n{ONE}\n```", ""),
        (f"```\n{ONE}\n```", ""),
        (ONE, ""),
        ('{"name": "python_interpreter", "parameters": {"code": "print(1)"}}', ""),
        (f"[{ONE}]", ""),
        ('{"function": {"name": "python_interpreter", "arguments": {"code": "print(1)"}}}', ""),
        (json.dumps({"name": "python_interpreter", "arguments": '{"code": "print(1)"}'}), ""),
    ],
)
def test_a_reply_that_is_a_call_is_a_call(text, said):
    assert read(text) == (said, CALL)


def test_code_in_triple_quotes_is_read():
    text = '```json\n{"name": "shell", "arguments": {"command": """echo "a"\nls"""}}\n```'
    assert read(text)[1] == [("shell", {"command": 'echo "a"\nls'})]


def test_several_calls_in_one_reply():
    text = f"<tool_call>{ONE}</tool_call>\n<tool_call>{ONE}</tool_call>"
    assert read(text)[1] == CALL * 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The answer is 4.",
        f"You could call {ONE} to see it.",
        f"Here is what I ran:\n```json\n{ONE}\n```\nand it printed 1.",
        f"```json\n{ONE}\n```\nThis prints 1.",
        f"For example:\n```\n<tool_call>{ONE}</tool_call>\n```",
        f"<tool_call>{ONE}</tool_call> is how calls are written.",
        '{"name": "Alice", "arguments": {"age": 3}}',
        '{"name": "shell", "command": "ls"}',
        '{"name": "shell", "arguments": {"command": "ls"}, "result": "ok"}',
        '{"mean": 4.5}',
        "[1, 2, 3]",
        "```python\nprint(1)\n```",
        '<tool_call>{"name": "shell", "arguments": {"command": "rm</tool_call>',
        '{"name": "shell", "arguments": [1]}',
    ],
)
def test_anything_else_is_what_it_says(text):
    assert read(text) == (text, [])


def test_the_call_runs_and_is_reported_as_repaired(bench):
    b = bench(say(f"<tool_call>{ONE}</tool_call>"), say("done"))
    b.model = TextCalls(b.model)
    assert isinstance(b.model, Model)
    assert b.drive().answer == "done"
    assert b.sandbox.ran == ["print(1)"]
    assert b.results[0].status is ResultStatus.OK
    assert "the call came as text" in b.results[0].text


def test_without_tools_nothing_is_a_call():
    model = TextCalls(ScriptedModel([say(ONE)]))
    reply = model.reply(Request(messages=()), timeout_s=1, is_cancelled=lambda: False)
    assert (reply.calls, reply.text) == ((), ONE)
