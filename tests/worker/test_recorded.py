"""Recordings: replayed turn by turn, written by a real run, and never half read."""

from __future__ import annotations

import json

import pytest

from worker.errors import InputInvalid, RecordingInvalid, Stop
from worker.messages import Finish, Status
from worker.models.base import Model, Request
from worker.models.recorded import RecordedModel
from worker.models.recording import RecordingModel
from worker.testing import ScriptedModel, ok, say


def write(tmp_path, *lines):
    path = tmp_path / "turns.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def ask(model, turn=0):
    return model.reply(Request(messages=(), turn=turn), timeout_s=1, is_cancelled=lambda: False)


def test_the_turn_follows_from_the_request_alone(tmp_path):
    model = RecordedModel(write(tmp_path, say("one"), "", say("two")))
    assert isinstance(model, Model)
    assert [ask(model, i).text for i in (1, 0, 1)] == ["two", "one", "two"]


def test_it_costs_nothing(tmp_path):
    usage = ask(RecordedModel(write(tmp_path, say("one")))).usage
    assert (usage.tokens, usage.cost) == (0, 0.0)


def test_after_the_last_turn_it_says_so(tmp_path):
    path = write(tmp_path, say("one"))
    with pytest.raises(Stop, match="the recording has no more replies after 1") as caught:
        ask(RecordedModel(path), 1)
    assert (caught.value.kind, caught.value.reason) == ("RecordingExhausted", "failed")


def test_what_models_do_is_made_normal_as_from_an_endpoint(tmp_path):
    wire = {
        "content": "<think>hm</think>",
        "tool_calls": [{"function": {"name": "shell", "arguments": {"command": "ls"}}}],
    }
    cut = {"role": "assistant", "content": "x", "finish_reason": "length"}
    model = RecordedModel(write(tmp_path, wire, cut))
    reply = ask(model)
    assert (reply.text, reply.reasoning) == ("", "hm")
    assert json.loads(reply.calls[0].arguments) == {"command": "ls"}
    assert ask(model, 1).finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"role": "assistant", "content": "x"', "not JSON"),
        ("plain words", "not JSON"),
        ("[1]", "not an object"),
        ("[" * 100_000, "not JSON: too many brackets"),
        ('{"content": "x", "y": ' + "[" * 300 + "]" * 300 + "}", "not JSON: too many brackets"),
        ('{"role": "user", "content": "x"}', "role is 'user'"),
        ('{"role": "assistant"}', "neither content nor tool_calls"),
        ('{"content": 3}', "content is not text"),
        ('{"tool_calls": [{"name": "x"}]}', "tool_calls is not a list"),
        ('{"tool_calls": {"function": 1}}', "tool_calls is not a list"),
    ],
)
def test_a_broken_line_names_the_file_and_the_line(tmp_path, line, why):
    path = write(tmp_path, say("one"), line, say("two"))
    with pytest.raises(RecordingInvalid) as caught:
        RecordedModel(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert why in str(caught.value)


def test_files_that_are_no_recording_are_one_line(tmp_path):
    with pytest.raises(InputInvalid, match="cannot read the recording"):
        RecordedModel(tmp_path / "missing")
    with pytest.raises(InputInvalid, match="cannot read the recording"):
        RecordedModel(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordingInvalid, match="not UTF-8"):
        RecordedModel(tmp_path / "binary")
    with pytest.raises(RecordingInvalid, match="has no replies"):
        RecordedModel(write(tmp_path, "", " "))


def test_a_recording_of_a_run_replays_as_the_run_was(tmp_path):
    script = [
        say("look", ("shell", {"command": "ls 'ä'"})),
        say(None, ("python_interpreter", "{broken"), finish_reason="length"),
        say("done", reasoning_content="because"),
    ]
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    model = RecordingModel(ScriptedModel(script), path)
    live = [ask(model, i) for i in range(3)]
    replayed = [ask(RecordedModel(path), i) for i in range(3)]
    assert [r.message for r in replayed] == [r.message for r in live]
    assert [r.finish for r in replayed] == [r.finish for r in live]
    first = json.loads(path.read_text().splitlines()[0])
    assert list(first) == ["role", "content", "tool_calls"]


def test_a_recording_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(InputInvalid, match="cannot write the recording"):
        RecordingModel(ScriptedModel([]), tmp_path / "no" / "such")


def test_a_recording_that_cannot_be_written_any_more_ends_the_job_by_name(tmp_path, bench):
    b = bench(say(None, ("shell", {"command": "ls"})), say("done"))
    path = tmp_path / "r.jsonl"

    def respond(sandbox, kind, text):
        path.unlink()
        path.mkdir()
        return ok()

    b.sandbox.respond = respond
    b.model = RecordingModel(b.model, path)
    job = b.drive()
    assert (job.status, job.error.type) == (Status.FAILED, "RecordingFailed")
    assert job.error.message == f"cannot write the recording {path}: Is a directory"
