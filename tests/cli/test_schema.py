"""`--schema`: an answer of a given shape, here and in the queue; a file that is none is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.cli_options import read_schema
from worker.errors import InputInvalid, SettingsInvalid
from worker.messages import Status
from worker.settings import Settings
from worker.station import Station
from worker.step import read_step
from worker.store.blobs import Blobs
from worker.store.memory import MemoryStore
from worker.submission import Submission, submit

UNISOLATED = {"CAISSON_DRIVER": "process", "CAISSON_ALLOW_UNISOLATED": "true"}
SCHEMA = {"type": "object", "properties": {"mean": {"type": "number"}}, "required": ["mean"]}


@pytest.fixture
def schema(tmp_path):
    def write(value):
        path = tmp_path / "schema.json"
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        path.write_bytes(data)
        return path

    return write


def test_an_answer_is_sent_back_until_it_fits(caisson, recording, schema):
    turns = recording("It is 4.", '```json\n{"mean": 4.50}\n```')
    ended = caisson(
        "run", "x", "--replay", turns, "--schema", schema(SCHEMA), "--json", **UNISOLATED
    )
    assert (ended.code, ended.object["answer"], ended.object["steps"]) == (0, '{"mean": 4.5}', 2)


def test_an_answer_that_never_fits_is_a_failure_with_the_last_answer(caisson, recording, schema):
    turns = recording("one", "two", '{"mean": "three"}', "four")
    ended = caisson(
        "run", "x", "--replay", turns, "--schema", schema(SCHEMA), "--json", **UNISOLATED
    )
    assert (ended.code, ended.object["answer"]) == (4, '{"mean": "three"}')
    assert ended.object["error"]["type"] == "AnswerInvalid"
    assert "mean: \"three\" is not of type 'number'" in ended.object["error"]["message"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "cannot read"),
        (b"{", "schema.json is not JSON: "),
        (b"\xff\xfe{", "schema.json is not JSON: "),
        (b"[" * 30_000, "schema.json is not JSON: "),
        (b'"' + b"x" * 40_000 + b'"', "32,768 bytes at most"),
        ([1], "schema.json: a JSON Schema is an object, not [1]"),
        ({"minLenght": 1}, "schema.json: the keyword 'minLenght' is not known"),
        ({"$ref": "https://a.example/b"}, "nothing is fetched"),
        (b'{"const": NaN}', "schema.json: it is not JSON: "),
        ({"const": "\0"}, "schema.json: it has NUL characters"),
        (b'{"const": "\\ud800"}', "schema.json: it has characters that are none in Unicode"),
    ],
)
def test_a_file_that_is_no_schema_is_refused_in_one_line(schema, value, said):
    with pytest.raises(InputInvalid) as refused:
        read_schema(schema(value) if value is not None else Path("missing.json"))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("command", ["run", "submit"])
def test_wrong_use_of_it_ends_a_command_before_anything_begins(caisson, recording, command):
    ended = caisson(command, "x", "--replay", recording("x"), "--schema", "missing.json")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "caisson: cannot read missing.json: No such file or directory\n"


def test_a_schema_goes_with_its_job(tmp_path, recording):
    settings = Settings(data_dir=tmp_path, driver="process", allow_unisolated=True)
    store = MemoryStore()
    what = Submission(goal="x", replay=recording('{"mean": 4}'), options={"answer_schema": SCHEMA})
    job_id = submit(what, settings, store, Blobs(tmp_path / "blobs"))
    assert Station(settings, store, "one").work_next().status is Status.SUCCEEDED
    assert store.get(job_id).job.answer == '{"mean": 4}'
    told = [event.message.text for event in store.events(job_id) if event.kind == "message"]
    assert json.dumps(SCHEMA) in told[1]


def test_in_a_pipeline_it_is_a_setting_of_the_job(tmp_path):
    step = read_step((), {"goal": "x", "options": {"answer_schema": {"typ": "object"}}})
    what = Submission(goal="x", options=step.options)
    with pytest.raises(SettingsInvalid, match=r"answer_schema = .*'typ' is not known"):
        submit(what, Settings(data_dir=tmp_path), MemoryStore(), Blobs(tmp_path / "blobs"))
