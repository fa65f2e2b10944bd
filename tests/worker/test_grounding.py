"""An answer about files that nobody has looked at goes back once."""

from __future__ import annotations

import pytest

from worker import assembly
from worker.builtin import Workplace
from worker.history import History
from worker.hooks import Run
from worker.messages import Job, MessageAdded
from worker.models.recorded import RecordedModel
from worker.settings import Settings
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ScriptedModel, say

LOOK = say(None, ("python_interpreter", {"code": "print(1)"}))


@pytest.fixture
def drive(tmp_path):
    def work(model, *, files=("a.csv",)):
        given = [tmp_path / name for name in files]
        for path in given:
            path.write_text("a\n1\n")
        store = MemoryStore()
        store.create(Job(id="j", goal="How many rows?"))
        run = Run(History(*store.load("j")), store, store.claim("j", "me", 60.0).generation)
        for message in assembly.opening("How many rows?", assembly.check_files(given)):
            run.append(MessageAdded(message=message))
        loop = assembly.build(Settings(), model, Workplace(FakeSandbox))
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
