"""Questions with answers: what counts as right, and a run that goes on where it was."""

from __future__ import annotations

import json

import pytest

from bench import dabench
from bench.dabench import Question, graded, is_equal, values_in

ASKED = {
    "id": 7,
    "question": "What is the mean of a?",
    "constraints": "Round to one decimal place.",
    "format": "@mean_a[number]",
    "file_name": "table.csv",
    "level": "easy",
    "concepts": ["Summary Statistics"],
    "answers": [["mean_a", "2.5"]],
}
CALL = {"name": "python_interpreter", "arguments": json.dumps({"code": "print(open('table.csv'))"})}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("The mean is @mean_a[2.5].", "right"),
        ("@Mean_A[ 2.50 ]", "right"),
        ("@mean_a[2.4] or rather @mean_a[2.5]", "right"),
        ("@mean_a[2.4]", "wrong value"),
        ("2.5", "not in the format"),
        ("@mean_a[2.5", "not in the format"),
        ("  ", "no answer"),
    ],
)
def test_an_answer_counts_when_every_value_is_there_and_equal(answer, why):
    assert graded(answer, Question.model_validate(ASKED)) == why


@pytest.mark.parametrize(
    ("given", "expected", "is_same"),
    [
        ("2.5000001", "2.5", True),
        ("2.51", "2.5", False),
        ("'Nigeria'", "nigeria", True),
        ("Niger", "Nigeria", False),
        ("", "", True),
        ("[]", "", False),
    ],
)
def test_numbers_are_compared_by_value_and_texts_whatever_their_case(given, expected, is_same):
    assert is_equal(given, expected) is is_same


def test_values_may_hold_brackets():
    assert list(values_in("@a[[1, 2]] @b[x]")) == [("a", "[1, 2]"), ("b", "x")]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/table.csv").write_text("a\n2\n3\n")
    other = {**ASKED, "id": 8, "level": "hard", "answers": [["mean_a", "9"]]}
    (tmp_path / "questions.jsonl").write_text(f"{json.dumps(ASKED)}\n{json.dumps(other)}\n")
    return tmp_path


@pytest.fixture
def asked(httpserver, monkeypatch):
    """An endpoint that calls a tool once and then answers; the requests that it has had."""
    bodies = []

    def answer(request):
        bodies.append(json.loads(request.data))
        has_result = bodies[-1]["messages"][-1]["role"] == "tool"
        call = [{"id": "1", "type": "function", "function": CALL}]
        message = {"role": "assistant", "content": "@mean_a[2.5]"}
        if not has_result:
            message = {"role": "assistant", "content": None, "tool_calls": call}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    def respond(request):
        from werkzeug import Response  # noqa: PLC0415

        return Response(json.dumps(answer(request)), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(respond)
    monkeypatch.setenv("OPENAI_BASE_URL", httpserver.url_for("/v1"))
    monkeypatch.setenv("CAISSON_MODEL", "m")
    return bodies


@pytest.mark.engine
def test_questions_are_jobs_and_what_is_answered_is_not_asked_again(folder, asked, capsys):
    questions = str(folder / "questions.jsonl")
    out = ["--out", str(folder / "out")]
    assert dabench.main([questions, *out, "--level", "easy"]) == 0
    assert len(asked) == 2
    assert "table.csv" in asked[0]["messages"][1]["content"]
    assert dabench.main([questions, *out]) == 0
    assert len(asked) == 4
    printed = capsys.readouterr().out
    assert "caisson: 1 of 2 right; on average 2.0 steps, 220 tokens" in printed
    assert "1 x wrong value: 8" in printed


def test_questions_that_are_not_there_are_one_line(folder, capsys):
    assert dabench.main([str(folder / "none.jsonl")]) == 2
    assert capsys.readouterr().err.startswith("dabench: [Errno 2]")


def test_a_line_that_is_no_question_is_named(folder, capsys):
    path = folder / "questions.jsonl"
    path.write_text(path.read_text() + '{"id": 9}\n')
    assert dabench.main([str(path)]) == 2
    assert capsys.readouterr().err == f"dabench: {path}, line 3: question: Field required\n"


@pytest.mark.engine
def test_what_broke_is_asked_again(folder, asked, capsys, monkeypatch):
    arguments = [str(folder / "questions.jsonl"), "--out", str(folder / "out"), "--level", "easy"]
    with monkeypatch.context() as broken:
        broken.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        broken.setenv("CAISSON_MODEL_TIMEOUT_S", "1")
        assert dabench.main(arguments) == 0
    assert "not answered: it broke" in capsys.readouterr().out
    assert dabench.main(arguments) == 0
    assert len(asked) == 2
    assert "caisson: 1 of 1 right" in capsys.readouterr().out
