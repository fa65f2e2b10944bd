"""Answers: told from everything else in every shape, and checked against a schema."""

from __future__ import annotations

import json

import pytest

from worker.answers import is_markup
from worker.messages import FinishReason, ResultStatus, Status
from worker.replies import is_promise
from worker.testing import say

RUN = ("python_interpreter", {"code": "1"})


# ---- in which shapes it comes


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"answer": "It is 4."}, "It is 4."),
        ({"result": "It is 4."}, "It is 4."),
        ({"text": "It is 4."}, "It is 4."),
        ({"anything": "It is 4."}, "It is 4."),
        ({"value": 4}, "4"),
        ({"answer": {"mean": 4.5}}, '{"mean": 4.5}'),
        ({"thought": "hm", "answer": "It is 4."}, "It is 4."),
        ({"mean": 4, "rows": 3}, '{"mean": 4, "rows": 3}'),
        ('"It is 4."', "It is 4."),
        ("It is 4.", "It is 4."),
        ('{"answer": "It is\n4."}', "It is\n4."),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_a_call_of_a_tool_that_there_is_not_gives_the_answer(bench, arguments, answer):
    b = bench(say(None, RUN), say(None, ("final_answer", arguments)))
    job = b.drive()
    assert (job.status, job.answer, job.steps) == (Status.SUCCEEDED, answer, 2)
    assert [r.status for r in b.results] == [ResultStatus.OK, ResultStatus.SKIPPED]
    assert b.sandbox.ran == ["1"]


@pytest.mark.parametrize("arguments", [{}, {"answer": ""}, {"status": "done"}, ""])
def test_what_is_said_beside_a_call_that_says_nothing_is_the_answer(bench, arguments):
    assert bench(say("It is 4.", ("finish", arguments))).drive().answer == "It is 4."


@pytest.mark.parametrize("name", ["finish", "submit", "answer", "FinalAnswer", "functions.finish"])
def test_it_may_be_called_by_many_names(bench, name):
    assert bench(say(None, (name, {"x": "4"}))).drive().answer == "4"


@pytest.mark.parametrize(
    "text", ["{call}", "<tool_call>{call}</tool_call>", "```json\n{call}\n```"]
)
def test_such_a_call_may_be_text_in_any_protocol(bench, text):
    call = '{"name": "final_answer", "arguments": {"answer": "4"}}'
    assert bench(say(text.replace("{call}", call))).drive().answer == "4"


def test_an_answer_beside_calls_came_too_early(bench):
    early = say(None, RUN, ("final_answer", {"answer": "4"}))
    b = bench(early, say(None, ("final_answer", {"answer": "5"})))
    assert b.drive().answer == "5"
    assert [r.status for r in b.results[:2]] == [ResultStatus.OK, ResultStatus.SKIPPED]
    assert "had not seen the results" in b.results[1].text


@pytest.mark.parametrize(
    "arguments", ["{}", '{"answer": ""}', '{"answer": " \\n"}', '{"answer": null}']
)
def test_an_empty_call_is_no_answer(bench, arguments):
    b = bench(say(None, ("final_answer", arguments)), say("4"))
    assert b.drive().answer == "4"
    assert "Not taken as the answer" in b.results[0].text
    job = bench(say(None, ("final_answer", arguments)), repeat_last=True).drive()
    assert (job.status, job.answer, job.error.type) == (Status.FAILED, None, "EmptyReplies")
    assert job.steps == 3


def test_an_answer_that_was_cut_off_in_its_call_is_sent_back(bench):
    cut = say(None, ("final_answer", '{"answer": "It is'))
    b = bench(cut, say("It is 4."))
    assert b.drive().answer == "It is 4."
    b = bench({**cut, "finish_reason": "length"}, say("It is 4."))
    assert b.drive().answer == "It is 4."


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Thought: I know.\nFinal Answer: 4", "4"),
        ("Thought: I know.\n\n**Final Answer:** It is\n4.", "It is\n4."),
        ("Final Answer: 4", "4"),
        ("<final_answer>\n4\n</final_answer>", "4"),
        ("It is\n```\n4\n```\nFINAL: yes", "It is\n```\n4\n```\nFINAL: yes"),
        ("The sum is 4.\nFinal Answer: 4", "The sum is 4.\nFinal Answer: 4"),
        ("'4'", "'4'"),
    ],
)
def test_an_answer_in_text_is_taken_as_it_is_but_for_its_frame(bench, text, answer):
    assert bench(say(text)).drive().answer == answer


# ---- what is none


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "```\n```",
        "```json\n```",
        "<br>",
        "---",
        "{}",
        "[]",
        "<|im_end|>",
        "**",
        "</think>",
        "<answer></answer>",
        "Final Answer:",
        "Thought: I know.\nFinal Answer:  ",
    ],
)
def test_what_says_nothing_is_never_an_answer(bench, text):
    assert bench(say(text), say("4")).drive().answer == "4"
    job = bench(say(text), repeat_last=True).drive()
    assert (job.status, job.answer, job.error.type) == (Status.FAILED, None, "EmptyReplies")


def test_a_reply_of_reasoning_alone_is_empty(bench):
    thinking = say(None, reasoning_content="I should call the tool")
    job = bench(thinking, repeat_last=True).drive()
    assert (job.answer, job.error.type, job.steps) == (None, "EmptyReplies", 3)


@pytest.mark.parametrize("text", [";", ",", "|", "`;`", "','", '"|"', ">", ">=", "==", "`!=`"])
def test_a_separator_or_an_operator_may_be_all_of_an_answer(bench, text):
    assert bench(say(None, RUN), say(text)).drive().answer == text


@pytest.mark.parametrize(
    "text", ["\x00", "\u200b", "\ufeff ", "\u2060**\u200d**", "''", "``", '""']
)
def test_what_nobody_sees_is_no_answer(bench, text):
    assert bench(say(text), say("4")).drive().answer == "4"
    assert bench(say(None, ("final_answer", {"answer": text})), say("4")).drive().answer == "4"


@pytest.mark.parametrize("depth", [100, 300, 450, 600, 900, 20_000])
def test_however_deep_the_arguments_of_an_answer_are_nothing_breaks(bench, depth):
    deep = "[" * depth + "]" * depth
    for arguments in (f'{{"answer": {deep}}}', deep, deep[:depth]):
        b = bench(say(None, ("final_answer", arguments)), say("4"))
        assert b.drive().answer in {deep, deep[:depth], "4"}


@pytest.mark.parametrize("text", ["4", "+", "∅", "no", "x < y > z", "a.csv", "👍", "π"])
def test_a_short_answer_says_something(text):
    assert not is_markup(text)


PROMISES = [
    "I will now run the code to compute the mean.",
    "Let me load the file data.csv and look at its columns.",
    "Sure! I'll start by reading the data.",
    "First, let me check the columns.",
    "To find the mean, I will load the data with pandas.",
    "I'm going to use python_interpreter to compute it…",
    "Okay, let's inspect the file:",
    "I need to read the file first. Then I will compute the mean.",
    "Thought: I should look at the data.",
]


@pytest.mark.parametrize("text", PROMISES)
def test_a_promise_is_sent_back_and_in_the_end_no_answer(bench, text):
    assert is_promise(text)
    b = bench(say(text), say(None, RUN), say("It is 4."))
    assert b.drive().answer == "It is 4."
    assert "called no tool" in b.notices[0].text
    job = bench(say(text), repeat_last=True).drive()
    assert (job.finish_reason, job.answer, job.steps) == (FinishReason.LOOP, None, 3)


@pytest.mark.parametrize(
    "text",
    [
        "The mean is 4.5.",
        "I ran the code; the mean is 4.5.",
        "I will summarise: the mean is 4.5.",
        "Let me summarise. The mean is 4.5.",
        "Let me know if you need more.",
        "The mean is 4.5. Let me know if you want a plot.",
        "I cannot read the file, because it is not there.",
        "I need to know which column you mean.",
        "I will not run this: it deletes the data.",
        "I should check with you first: which file?",
        "We used pandas to compute it: 4.5",
        "Sure!",
        "Thought: I know it all now.\nThe mean is 4.5.",
        "Let me load it: it has 3 rows. I will read the rest, 40 rows of 3 columns: all are 4.5.",
    ],
)
def test_an_answer_is_no_promise(bench, text):
    assert not is_promise(text)
    assert bench(say(text)).drive().answer == text


@pytest.mark.parametrize("text", ["{}", "```json\n{}\n```"])
def test_json_with_the_same_value_many_times_is_an_answer(bench, text):
    text = text.replace("{}", json.dumps(["setosa"] * 60))
    assert bench(say(text)).drive().answer == text
    b = bench(say(text[:-6]), say("4"))
    assert b.drive().answer == "4"


# ---- what it must fit

SCHEMA = {
    "type": "object",
    "properties": {"mean": {"type": "number"}, "rows": {"type": "integer"}},
    "required": ["mean"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "message",
    [
        say('{"mean": 4.50, "rows": 3}'),
        say(' {\n "mean": 4.5,\n "rows": 3}\n'),
        say('```json\n{"mean": 4.5, "rows": 3}\n```'),
        say('Here it is:\n```\n{"mean": 4.5, "rows": 3}\n```\nThat is all.'),
        say('Of `price`:\n```json\n{"mean": 4.5, "rows": 3}\n```\nIts `rows` are all.'),
        say('```json {"mean": 4.5, "rows": 3} ```'),
        say('```JSON\n{"mean": 4.5, "rows": 3}```'),
        say('Thought: done\nFinal Answer: {"mean": 4.5, "rows": 3}'),
        say(None, ("final_answer", {"answer": {"mean": 4.5, "rows": 3}})),
        say(None, ("final_answer", {"answer": '{"mean": 4.5, "rows": 3}'})),
        say(None, ("final_answer", {"mean": 4.5, "rows": 3})),
    ],
)
def test_an_answer_that_fits_is_given_as_normal_json(bench, message):
    job = bench(message, answer_schema=SCHEMA).drive()
    assert (job.status, job.answer) == (Status.SUCCEEDED, '{"mean": 4.5, "rows": 3}')


def test_an_argument_that_is_the_whole_answer_fits(bench):
    job = bench(say(None, ("final_answer", {"mean": 4.5})), answer_schema=SCHEMA).drive()
    assert job.answer == '{"mean": 4.5}'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("The mean is 4.5.", "it is not JSON: Expecting value"),
        ('{"mean": NaN}', "it is not JSON: NaN"),
        ('{"mean": 4.5', "it is not JSON"),
        ('```\n{"mean": 4.5}\n```\nor\n```\n{"mean": 5}\n```', "it is not JSON"),
        ('{"mean": "4.5"}', "mean: \"4.5\" is not of type 'number'"),
        ('{"rows": 3}', "mean: missing, required"),
        ('{"mean": 1, "x": 2}', "x: unknown, not allowed"),
        ("[4.5]", "the answer: [4.5] is not of type 'object'"),
        ("[" * 3000 + "]" * 3000, "too deep"),
        ("[" * 200_000, "too deep"),
        ('{"mean": ' + "9" * 5000 + "}", "it is not JSON"),
    ],
)
def test_an_answer_that_does_not_fit_is_sent_back_with_its_faults(bench, text, fault):
    b = bench(say(text), say('{"mean": 4.5}'), answer_schema=SCHEMA)
    assert b.drive().answer == '{"mean": 4.5}'
    assert fault in b.notices[0].text


def test_what_is_said_of_an_answer_that_does_not_fit_is_short(bench):
    text = json.dumps({"k" * 100_000: 1, **{f"key {i}": 1 for i in range(900)}})
    b = bench(say(text), say('{"mean": 4.5}'), answer_schema=SCHEMA)
    assert b.drive().answer == '{"mean": 4.5}'
    assert len(b.notices[0].text) < 5000


def test_half_of_a_pair_of_surrogates_is_replaced_in_an_answer(bench):
    job = bench(say('{"name": "\\ud800"}'), answer_schema={"type": "object"}).drive()
    assert job.answer == '{"name": "\ufffd"}'


def test_after_two_corrections_the_job_fails_and_the_last_answer_is_kept(bench):
    script = [say("one"), say(None, RUN), say("two"), say('{"rows": 3}'), say("never asked")]
    job = bench(*script, answer_schema=SCHEMA).drive()
    assert (job.status, job.finish_reason) == (Status.FAILED, FinishReason.FAILED)
    assert (job.error.type, job.answer, job.steps) == ("AnswerInvalid", '{"rows": 3}', 4)
    assert "after 2 corrections: mean: missing, required" in job.error.message


def test_the_last_answer_of_a_recording_is_kept_though_it_does_not_fit(bench):
    job = bench(say("one"), answer_schema=SCHEMA).drive()
    assert (job.error.type, job.answer, job.steps) == ("AnswerInvalid", "one", 1)


LAST_WORDS = {
    "text": say('{"mean": 4}'),
    "fence": say('```json\n{"mean": 4}\n```'),
    "call": say(None, ("final_answer", {"answer": {"mean": 4}})),
    "call as text": say('{"name": "final_answer", "arguments": {"mean": 4}}'),
    "beside a call": say('{"mean": 4}', RUN),
}


@pytest.mark.parametrize("last", LAST_WORDS.values(), ids=LAST_WORDS)
@pytest.mark.parametrize("early", [say("one"), say(None, ("final_answer", {"mean": "x"}))])
@pytest.mark.parametrize("limit", [{"max_steps": 2}, {"max_tokens": 9}])
def test_an_answer_that_is_mended_in_the_last_turn_is_the_answer(bench, last, early, limit):
    b = bench(say(None, RUN), {**early, "usage": {"input_tokens": 9}}, last, **limit)
    b.settings = b.settings.model_copy(update={"answer_schema": SCHEMA})
    job = b.drive()
    assert (job.finish_reason, job.answer, job.steps) == (FinishReason.BUDGET, '{"mean": 4}', 3)
    assert "schema" not in job.error.message


def test_how_often_it_is_sent_back_is_a_setting(bench):
    job = bench(say("one"), say("two"), answer_schema=SCHEMA, answer_corrections=0).drive()
    assert (job.error.type, job.answer, job.steps) == ("AnswerInvalid", "one", 1)


def test_corrections_are_counted_over_a_crash(bench):
    b = bench(say("one"), say("two"), ConnectionError("crash"), answer_schema=SCHEMA)
    with pytest.raises(ConnectionError):
        b.drive()
    b.model = type(b.model)([say("one"), say("two"), say("three"), say("four")])
    job = b.drive()
    assert (job.error.type, job.answer, job.steps) == ("AnswerInvalid", "three", 3)


def test_a_call_that_gives_no_fitting_answer_has_its_result(bench):
    b = bench(say(None, ("final_answer", {"mean": "x"})), say('{"mean": 1}'), answer_schema=SCHEMA)
    assert b.drive().answer == '{"mean": 1}'
    assert "Not taken as the answer" in b.results[0].text
    assert "is not of type 'number'" in b.notices[0].text


@pytest.mark.parametrize(
    ("text", "answer", "said"),
    [
        ('```\n{"mean": 4}\n```', '{"mean": 4}', ""),
        ("About 4.", "About 4.", "; the answer does not fit the schema: it is not JSON"),
        ('{"rows": 1}', '{"rows": 1}', "; the answer does not fit the schema: mean: missing"),
        ("", None, ""),
    ],
)
def test_the_answer_of_a_last_turn_is_checked_and_not_sent_back(bench, text, answer, said):
    job = bench(say(None, RUN), say(text), max_steps=1, answer_schema=SCHEMA).drive()
    assert (job.finish_reason, job.answer) == (FinishReason.BUDGET, answer)
    assert job.error.message.startswith("max_steps: 1 of 1")
    assert job.error.message.partition("used")[2].startswith(said)
    assert bool(said) == ("schema" in job.error.message)


@pytest.mark.parametrize(
    "message",
    [
        say('{"name": "shell", "arguments": {"command": "ls"}}'),
        say('<tool_call>{"name": "shell", "arguments": {"command": "ls'),
        say(None, ("final_answer", {})),
        say("```\n```"),
    ],
)
def test_a_call_or_markup_in_a_last_turn_is_no_answer(bench, message):
    assert bench(say(None, RUN), message, max_steps=1).drive().answer is None


def test_what_is_said_beside_calls_in_a_last_turn_is_the_answer(bench):
    job = bench(say(None, RUN), say("About 4.", RUN), max_steps=1).drive()
    assert (job.finish_reason, job.answer) == (FinishReason.BUDGET, "About 4.")


def test_an_answer_by_a_call_in_a_last_turn_is_the_answer(bench):
    last = say(None, ("final_answer", {"answer": "About 4."}))
    job = bench(say(None, RUN), last, max_steps=1).drive()
    assert (job.finish_reason, job.answer) == (FinishReason.BUDGET, "About 4.")


@pytest.mark.parametrize("depth", [100, 300, 500, 700, 800, 900, 950, 990])
def test_however_deep_an_answer_is_nothing_breaks(bench, depth):
    deep = "[" * depth + "]" * depth
    job = bench(say(deep), answer_schema={"items": {"maxItems": 3}}, answer_corrections=0).drive()
    assert job.answer == deep
    assert job.error is None or job.error.type == "AnswerInvalid"


@pytest.mark.parametrize("text", ["4", "[]", "{}", '""', "null"])
def test_an_answer_may_be_any_json(bench, text):
    assert bench(say(text), answer_schema={}).drive().answer == text
