"""One shape for the many in which a reply comes, and nothing of a thought in it."""

from __future__ import annotations

import time

import pytest

from worker.errors import ModelUnavailable
from worker.messages import Finish
from worker.models.normal import chosen_of, normal_finish, normal_message
from worker.models.thoughts import split_thought

FENCE = "```"


@pytest.mark.parametrize(
    ("content", "text", "thought"),
    [
        ("<THINK>a</THINK>4", "4", "a"),
        ("<reasoning>a</reasoning>4", "4", "a"),
        ("<seed:think>a</seed:think>4", "4", "a"),
        ("[THINK]a[/THINK]4", "4", "a"),
        ("◁think▷a◁/think▷4", "4", "a"),
        ("<|begin_of_thought|>a<|end_of_thought|>4", "4", "a"),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant"
            "<|channel|>final<|message|>4<|return|>",
            "4",
            "a",
        ),
        ("<think>a</think>\n\n<think></think>4", "4", "a"),
        ("<think></think>4", "4", ""),
        ("[THINK]never closed", "", "never closed"),
        ("a[/THINK]4", "4", "a"),
        (
            "Let me see.\n<think>\na\n</think>\nThe answer is 4.",
            "Let me see.\n\nThe answer is 4.",
            "a",
        ),
        ("4\n<think>was that right?</think>", "4", "was that right?"),
        # what may be meant as it stands
        ("use <think>x</think> tags", "use <think>x</think> tags", ""),
        (f"{FENCE}\n<think>\nx\n</think>\n{FENCE}", f"{FENCE}\n<think>\nx\n</think>\n{FENCE}", ""),
        ("4\n<think>\nnever closed", "4\n<think>\nnever closed", ""),
        ("close it with `</think>` at last", "close it with `</think>` at last", ""),
        ("a <b>bold</b> claim", "a <b>bold</b> claim", ""),
        ("", "", ""),
    ],
)
def test_thoughts_are_taken_out_where_they_can_be_nothing_else(content, text, thought):
    assert split_thought(content) == (text, thought)


@pytest.mark.parametrize(
    "content",
    [
        "<think></think>" * 50_000,
        "\n<think>" * 50_000,
        "x" + "\n<think>" * 50_000,
        "x\n" + "\n<think>a</think>\n```" * 20_000,
        "<" * 200_000,
        "\n" * 200_000 + "x",
        "<|channel|>final" * 20_000,
    ],
    ids=lambda content: content[:12] if len(content) > 20 else content,
)
def test_no_text_takes_long(content):
    started = time.monotonic()
    split_thought(content)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("fields", "text", "thought"),
    [
        ({"content": "4", "reasoning": "a"}, "4", "a"),
        ({"content": "4", "thinking": "a"}, "4", "a"),
        ({"content": "4", "thinking": {"content": "a"}}, "4", "a"),
        (
            {"content": "4", "reasoning_details": [{"type": "reasoning.text", "text": "a"}]},
            "4",
            "a",
        ),
        ({"content": "4", "reasoning_content": "a", "reasoning": "a"}, "4", "a"),
        ({"content": "<think>b</think>4", "reasoning_content": "a"}, "4", "a\nb"),
        (
            {"content": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "4"}]},
            "4",
            "a",
        ),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]},
                    {"type": "text", "text": {"value": "4"}},
                ]
            },
            "4",
            "a",
        ),
        ({"content": {"type": "text", "text": "4"}}, "4", ""),
        ({"content": ["4", None, 5, {"type": "image_url", "image_url": {}}]}, "45", ""),
        ({"content": 4}, "4", ""),
        ({"content": True}, "", ""),
        ({"content": None, "refusal": "I will not"}, "I will not", ""),
    ],
)
def test_texts_and_thoughts_of_each_shape(fields, text, thought):
    message = normal_message({"role": "assistant", **fields})
    assert message.text == text
    assert message.extra.get("reasoning_content", "") == thought
    assert not {"reasoning", "thinking", "reasoning_details"} & message.extra.keys()


NAMED = {"name": "shell", "arguments": '{"command": "ls"}'}


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": {"0": {"id": "a", "function": NAMED}}},
        {"tool_calls": {"id": "a", "function": NAMED}},
        {"tool_calls": '[{"function": {"name": "shell", "arguments": {"command": "ls"}}}]'},
        {"tool_calls": [None, {"id": 7, "function": NAMED}, "x"]},
        {"tool_calls": [{"function": "shell", "arguments": {"command": "ls"}}]},
        {"tool_calls": [{"function": {"name": "shell", "parameters": {"command": "ls"}}}]},
        {"tool_calls": [{"custom": {"name": "shell", "input": '{"command": "ls"}'}}]},
        {"tool_calls": [{"type": "tool_use", "name": "shell", "input": {"command": "ls"}}]},
        {"content": [{"type": "tool_use", "id": "a", "name": "shell", "input": {"command": "ls"}}]},
        {"tool_calls": [], "function_call": NAMED},
    ],
)  # fmt: skip
def test_calls_of_each_shape(fields):
    message = normal_message({"role": "assistant", **fields})
    (call,) = message.tool_calls
    assert (call.name, call.arguments) == ("shell", '{"command": "ls"}')
    assert call.id
    assert message.text == ""


@pytest.mark.parametrize(
    "calls", [{}, [], None, "", "x", "{", 4, [[]], [None], "[" * 10_000], ids=str
)
def test_what_is_no_call_is_none(calls):
    assert normal_message({"content": "4", "tool_calls": calls}).tool_calls == ()


@pytest.mark.parametrize("wire", [None, "x", [], 4])
def test_what_is_no_message_is_said_to_be_none(wire):
    with pytest.raises(ModelUnavailable, match="no message but"):
        normal_message(wire)


def test_parts_whose_kind_is_no_text_are_read_as_texts():
    parts = [{"type": ["thinking"], "text": "a"}, {"type": {"b": 1}, "text": "b"}, None, 7]
    assert normal_message({"content": parts}).text == "ab7"


TEXT = {"message": {"content": "text"}}
CALLS = {"message": {"content": None, "tool_calls": [{"function": NAMED}]}}
NOTHING = {"message": {"content": None}}


@pytest.mark.parametrize(
    ("choices", "chosen"),
    [
        ([TEXT, CALLS], CALLS),
        ([NOTHING, TEXT], TEXT),
        ([None, TEXT], TEXT),
        ([NOTHING], NOTHING),
        ({"0": TEXT}, TEXT),
        (TEXT, TEXT),
        ([{"text": "text"}], {"message": {"role": "assistant", "content": "text"}, "text": "text"}),
        ([{"message": "text"}], {"message": {"role": "assistant", "content": "text"}}),
        ([], None),
        ({}, None),
        (None, None),
        ("x", None),
        (7, None),
        (True, None),
    ],
)
def test_one_of_several_choices_is_the_reply(choices, chosen):
    assert chosen_of({"choices": choices}) == chosen


@pytest.mark.parametrize(
    ("said", "finish"),
    [
        ("MAX_TOKENS", Finish.LENGTH),
        ("max_output_tokens", Finish.LENGTH),
        ("SAFETY", Finish.FILTER),
        ("sensitive", Finish.FILTER),
        ("stop", Finish.STOP),
        ("tool_calls", Finish.STOP),
        (["length"], Finish.STOP),
        (None, Finish.STOP),
    ],
)
def test_reasons_of_each_dialect(said, finish):
    assert normal_finish(said) is finish
