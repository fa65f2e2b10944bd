"""The arguments of a job in a pipeline: what is wrong is named, with what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.errors import InputInvalid
from worker.step import check_step, read_step


def complaint(*texts, **fields):
    with pytest.raises(InputInvalid) as caught:
        read_step(texts, fields)
    said = str(caught.value)
    assert said.startswith("worker.tasks.run")
    assert "\n" not in said
    return said.removeprefix("worker.tasks.run: ")


@pytest.mark.parametrize(
    ("texts", "fields", "goal", "data"),
    [
        (["goal"], {}, "goal", None),
        ([{"rows": 3}, "goal"], {}, "goal", {"rows": 3}),
        ([{"rows": 3}], {"goal": "goal"}, "goal", {"rows": 3}),
        ([], {"goal": "goal"}, "goal", None),
    ],
)
def test_the_last_text_is_the_goal_and_what_comes_before_is_data(texts, fields, goal, data):
    step = read_step(texts, fields)
    assert (step.goal, step.data) == (goal, data)


def test_paths_are_a_list_of_texts_and_there_are_no_more_than_two_texts():
    assert read_step(["count"], {"files": ["a.csv"]}).files == (Path("a.csv"),)
    assert "takes a goal and what the task before it returned" in complaint("a", "b", "c")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("file", "; did you mean files? (settings of a job go into options={…})"),
        ("max_step", "; did you mean max_steps? (settings of a job go into options={…})"),
        ("memory", "; it is a setting of a job: options={'memory': …}"),
        ("colour", " (settings of a job go into options={…})"),
    ],
)
def test_an_unknown_argument_is_named_with_what_was_meant_and_where_settings_go(name, meant):
    assert complaint("x", **{name: 1}) == f"there is no argument {name!r}{meant}"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("goal", 5, "text"),
        ("files", "a.csv", "a list of paths where the worker is"),
        ("mounts", [1], "a list of paths where the worker is"),
        ("options", ["memory"], "a dict of settings of a job, by their names"),
        ("replay", 5, "the path of a recording"),
        ("idempotency_key", 7, "text"),
        ("priority", "high", "a whole number from -100 to 100"),
        ("priority", 101, "a whole number from -100 to 100"),
        ("raise_on_failure", "perhaps", "True or False"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_what_is_expected(name, value, expected):
    shown = value[0] if name == "mounts" else value
    said = complaint(**{"goal": "x", name: value})
    assert said == f"{name} must be {expected}, which {shown!r} is not"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_step", "; did you mean max_steps?"),
        ("share_memory", "; it is the worker's own"),
        ("colour", ""),
    ],
)
def test_an_option_that_is_no_setting_of_a_job_is_refused_where_it_is_written(name, near):
    said = f"options: {name} is no setting of a job{near}"
    assert complaint("x", options={"memory": "1g", name: 1}) == said
    with pytest.raises(InputInvalid, match=name):
        check_step(["x"], {"options": {name: 1}})


def test_values_of_options_are_left_to_the_worker():
    assert read_step(["x"], {"options": {"max_steps": -1}}).options == {"max_steps": -1}


def test_a_long_value_is_shown_by_its_beginning():
    assert len(complaint("x", options="x" * 10_000)) < 200


def test_what_is_written_without_a_goal_may_get_one_later():
    check_step((), {"files": ["a.csv"]})
    assert complaint(files=["a.csv"]) == "goal is missing; it must be text"
    with pytest.raises(InputInvalid, match="files"):
        check_step((), {"files": 1})
