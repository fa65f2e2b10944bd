"""An answer that nothing supports goes back once for each reason."""

from __future__ import annotations

import json
import time

import pytest

from sandbox.types import ErrorInfo, Outcome
from worker import assembly
from worker.builtin import Workplace
from worker.errors import Cancelled, ModelUnavailable
from worker.grounding import made_up_numbers
from worker.history import History
from worker.hooks import Run
from worker.messages import Budget, FinishReason, Job, MessageAdded, Status
from worker.models.recorded import RecordedModel
from worker.settings import Settings
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ScriptedModel, ok, say

LOOK = say(None, ("python_interpreter", {"code": "print(1)"}))


@pytest.fixture
def drive(tmp_path):
    def work(
        model,
        *,
        files=("a.csv",),
        shown="1",
        goal="How many rows?",
        seen=None,
        schema=None,
        **budget,
    ):
        given = [tmp_path / name for name in files]
        for path in given:
            path.write_text("a\n1\n")

        def respond(_sandbox, _kind, text):
            if "fail" in text:
                error = ErrorInfo(type="KeyError", message="'a'", line=1, source=text)
                return ok().model_copy(update={"outcome": Outcome.ERROR, "error": error})
            return ok(shown)

        store = MemoryStore()
        store.create(Job(id="j", goal=goal, budget=Budget(**budget)))
        run = Run(History(*store.load("j")), store, store.claim("j", "me", 60.0).generation)
        for message in assembly.opening(goal, assembly.check_files(given)):
            run.append(MessageAdded(message=message))
        loop = assembly.build(
            Settings(answer_schema=schema), model, Workplace(lambda: FakeSandbox(respond=respond))
        )
        if seen:
            seen(run)
        loop.drive(run)
        return run

    return work


def sent_back(run):
    return [n.reason for turn in run.history.turns for n in turn.notices]


def test_an_answer_before_any_look_at_the_files_goes_back_once(drive):
    run = drive(ScriptedModel([say("12"), LOOK, say("1")]))
    assert (run.job.answer, sent_back(run)) == ("1", ["grounding:files"])


def test_a_model_that_gives_its_answer_again_means_it(drive):
    run = drive(ScriptedModel([say("12"), say("12")]))
    assert (run.job.answer, run.job.steps) == ("12", 2)


def test_a_job_without_files_may_be_answered_at_once(drive):
    run = drive(ScriptedModel([say("12")]), files=())
    assert (run.job.answer, sent_back(run)) == ("12", [])


def test_an_answer_after_a_call_stands(drive):
    run = drive(ScriptedModel([LOOK, say("1")]))
    assert (run.job.answer, sent_back(run)) == ("1", [])


def test_the_last_reply_of_a_recording_is_not_asked_for_again(drive, tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text('{"role": "assistant", "content": "12"}\n')
    run = drive(RecordedModel(path))
    assert (run.job.answer, run.job.steps, sent_back(run)) == ("12", 1, [])


def test_a_recording_of_an_answer_that_went_back_is_replayed_as_it_was(drive, tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text('{"role": "assistant", "content": "12"}\n' * 2)
    run = drive(RecordedModel(path))
    assert (run.job.steps, sent_back(run)) == (2, ["grounding:files"])


FAIL = say(None, ("python_interpreter", {"code": "fail()"}))


def test_an_answer_after_a_call_that_failed_goes_back_once(drive):
    run = drive(ScriptedModel([FAIL, say("0"), LOOK, say("1")]))
    assert (run.job.answer, sent_back(run)) == ("1", ["grounding:failed"])


def test_each_reason_is_told_once_and_then_the_answer_stands(drive):
    script = [say("12"), FAIL, say("12"), LOOK, say("1234"), say("1234")]
    run = drive(ScriptedModel(script))
    reasons = ["grounding:files", "grounding:failed", "grounding:numbers"]
    assert (run.job.answer, sent_back(run)) == ("1234", reasons)


def test_an_answer_that_went_back_is_kept_when_the_budget_ends_without_another(drive):
    run = drive(ScriptedModel([say("12"), LOOK, say("")]), max_steps=3)
    assert (run.job.finish_reason, run.job.answer) == (FinishReason.BUDGET, "12")
    assert run.job.error.message.endswith("; the answer is one that was sent back")


def test_an_answer_that_went_back_is_kept_when_the_endpoint_is_gone(drive):
    runs = []
    with pytest.raises(ModelUnavailable) as gone:
        drive(ScriptedModel([say("12"), LOOK, ModelUnavailable("gone")]), seen=runs.append)
    runs[0].give_up(gone.value)
    assert (runs[0].job.status, runs[0].job.answer) == (Status.DEAD, "12")
    assert runs[0].job.error.message == "gone; the answer is one that was sent back"


def test_an_answer_that_went_back_makes_no_cancelled_job_succeed(drive):
    run = drive(ScriptedModel([say("12"), LOOK, Cancelled()]))
    assert (run.job.status, run.job.answer) == (Status.CANCELLED, "12")
    assert run.job.error.type == "Cancelled"


def test_a_better_answer_is_kept_rather_than_the_one_that_went_back(drive):
    run = drive(ScriptedModel([say("12"), LOOK, say("the best so far: 1")]), max_steps=3)
    assert run.job.answer == "the best so far: 1"
    assert "sent back" not in (run.job.error.message if run.job.error else "")


def test_an_answer_that_went_back_is_kept_as_the_schema_has_it(drive):
    fenced = 'Here:\n```json\n{"a": 1}\n```'
    schema = {"type": "object", "required": ["a"]}
    run = drive(ScriptedModel([say(fenced), LOOK, say("")]), schema=schema, max_steps=3)
    assert json.loads(run.job.answer) == {"a": 1}


def test_one_that_does_not_fit_is_kept_with_its_fault(drive):
    schema = {"type": "object", "required": ["a"]}
    run = drive(ScriptedModel([LOOK, say('{"b": 1}'), say("")]), schema=schema, max_steps=3)
    assert json.loads(run.job.answer) == {"b": 1}
    assert run.job.error.message.endswith("; the answer is one that was sent back")


def test_an_answer_that_is_only_code_is_kept(drive):
    code = "```js\nlet a = 1\n```"
    run = drive(ScriptedModel([LOOK, say(code), say("")]), max_steps=3)
    assert run.job.answer == code


def test_a_number_that_no_result_has_goes_back_by_name(drive):
    script = [LOOK, say("It is 8,255,791.71."), say("It is 8254791.71.")]
    run = drive(ScriptedModel(script), shown="8254791.7123")
    assert (run.job.answer, sent_back(run)) == ("It is 8254791.71.", ["grounding:numbers"])
    assert "in no result: 8,255,791.71. " in run.history.turns[2].notices[0].text


def test_an_answer_that_comes_as_a_call_is_looked_at_as_well(drive):
    run = drive(ScriptedModel([say(None, ("final_answer", {"answer": "12"})), LOOK, say("1")]))
    assert (run.job.answer, sent_back(run)) == ("1", ["grounding:files"])


@pytest.mark.parametrize("answer", ["It is 12345.", "@rows[number_of_rows]"])
@pytest.mark.parametrize("budget", [{"max_steps": 2}, {"max_tokens": 100}])
def test_an_answer_with_the_last_of_the_budget_does_not_go_back(drive, answer, budget):
    script = [LOOK, say(answer, usage={"input_tokens": 100})]
    run = drive(ScriptedModel(script), goal="@rows[number_of_rows]", **budget)
    assert (run.job.finish_reason, run.job.answer) == (FinishReason.ANSWERED, answer)
    assert sent_back(run) == []


def test_a_call_that_was_not_run_is_no_look_at_the_files(drive):
    empty = say(None, ("final_answer", {}))
    run = drive(ScriptedModel([empty, say("12"), LOOK, say("1")]))
    assert (run.job.answer, sent_back(run)) == ("1", ["reply:empty", "grounding:files"])


@pytest.mark.parametrize(
    ("answer", "made_up"),
    [
        ("Die Summe ist 1.234.567,89 €.", []),
        ("La somme est 1 234 567,89 €.", []),
        ("La somme est 1\u202f234\u202f567,89 €.", []),
        ("1'234'567.89 Franken", []),
        ("rund 12,35 %, am 15.01.2024", []),
        ("合计 1,234,567.89", []),
        ("(345,678)", []),
        ("345 678", []),
        ("1.234.999,89", ["1.234"]),
        ("16.01.2024", ["16.01"]),
        ("rund 19,35 %", ["19,35"]),
        ("345 677", ["677"]),
    ],
)
def test_numbers_may_be_written_as_in_any_country(answer, made_up):
    seen = ["sum 1234567.891, share 0.12345, on 2024-01-15", "345", "678"]
    assert list(made_up_numbers(answer, seen)) == made_up


@pytest.mark.parametrize("piece", ["1", "1,", "1.", "1 ", "1e", "1e9", "1'", "9" * 400 + " "])
def test_texts_made_of_digits_are_looked_at_quickly(piece):
    answer = piece * (200_000 // len(piece))
    began = time.monotonic()
    list(made_up_numbers(answer, [answer[::-1]]))
    list(made_up_numbers("1e" + "9" * 9000, ["345"]))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("answer", "made_up"),
    [
        ("22607406.19", []),
        ("22,607,406.19", []),
        ("about 22,600,000", []),
        ("2.26e7", []),
        ("-0.258", []),
        ("25.8 %", []),
        ("0.2575", ["0.2575"]),
        ("22607407", ["22607407"]),
        ("12 of 99", []),
        ("year 2010", ["2010"]),
        ("build abc123 and v1.234", []),
        ("1e999 and " + "9" * 400, ["9" * 400]),
        ("123e" + "9" * 5000, []),
        ("", []),
    ],
)
def test_numbers_may_be_rounded_or_written_in_another_way(answer, made_up):
    seen = ["mean 22607406.1923, share 0.2578", "std 3"]
    assert list(made_up_numbers(answer, seen)) == made_up


def test_many_numbers_are_looked_at_quickly():
    seen = [" ".join(map(str, range(100_000, 300_000)))]
    answer = " ".join(map(str, range(100_000, 120_000)))
    began = time.monotonic()
    assert not list(made_up_numbers(answer, seen))
    assert time.monotonic() - began < 5


def test_a_blank_of_the_format_that_was_not_filled_in_goes_back(drive):
    goal = "Answer as @rows[number_of_rows]."
    run = drive(ScriptedModel([LOOK, say("@rows[number_of_rows]"), say("@rows[1]")]), goal=goal)
    assert (run.job.answer, sent_back(run)) == ("@rows[1]", ["grounding:blanks"])


def test_what_is_no_blank_of_the_format_stands(drive):
    run = drive(ScriptedModel([LOOK, say("[first_name] is a column"), say("no")]))
    assert (run.job.answer, sent_back(run)) == ("[first_name] is a column", [])
