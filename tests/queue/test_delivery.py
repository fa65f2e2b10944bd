"""What a pipeline is given: all of it when it is small, its beginning when it is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.delivery import JobResult, Turn, failure_of, result_of
from worker.messages import Artifact, FinishReason, Job, JobError, Status


def job_with(answer="42", files=0, **fields):
    artifacts = tuple(
        Artifact(name=f"plot-{n}.png", size=n, mime="image/png", path=f"/artifacts/plot-{n}.png")
        for n in range(files)
    )
    return Job(
        id="j1",
        goal="secret goal",
        status=Status.SUCCEEDED,
        finish_reason=FinishReason.ANSWERED,
        answer=answer,
        artifacts=artifacts,
    ).model_copy(update=fields)


def test_a_small_result_is_the_job_as_programs_see_it():
    found = result_of(job_with(files=2), 65_536)
    assert found == {**job_with(files=2).summary(), "reference": None}
    assert JobResult.model_validate(found).answer == "42"
    assert "secret goal" not in json.dumps(found)


@given(
    answer=st.one_of(st.none(), st.text(max_size=5000), st.integers(1, 20_000).map("é\n".__mul__)),
    files=st.integers(0, 100),
    most=st.integers(1024, 8192),
    error=st.one_of(st.none(), st.text(max_size=3000)),
)
def test_a_result_never_exceeds_the_bound_and_says_where_the_rest_is(answer, files, most, error):
    failed = None if error is None else JobError(type="Failed", message=error)
    job = job_with(answer, files, error=failed)
    found = result_of(job, most)
    text = json.dumps(found)
    assert len(text) <= most
    assert JobResult.model_validate_json(text)
    assert (answer or "").startswith(found["answer"] or "")
    whole = {**job.summary(), "reference": None}
    if found["reference"] is None:
        assert found == whole
    else:
        assert found["reference"] == {"job": "j1", "bytes": len(json.dumps(whole))}
        assert found["artifacts"] == whole["artifacts"][: len(found["artifacts"])]


def test_much_of_a_long_answer_is_kept():
    found = result_of(job_with("x" * 100_000, files=100), 8192)
    assert len(found["answer"]) > 3000
    assert len(found["artifacts"]) > 10


def test_a_failure_is_one_line_with_the_job_and_the_reason():
    job = job_with(
        None,
        status=Status.FAILED,
        finish_reason=FinishReason.BUDGET,
        error=JobError(type="BudgetSpent", message="30 of 30 steps\nare used"),
    )
    assert failure_of(job) == "job j1 (failed, budget): 30 of 30 steps are used"
    assert len(failure_of(job_with(error=JobError(type="E", message="x" * 10_000)))) == 2000


def test_the_turn_to_say_an_end_is_one_process_at_a_time_and_one_task_apart(tmp_path):
    """Locks are a process's own, so another one asks."""
    turn, home = Turn(), tmp_path / "home"
    turn.take(home, "one")
    asking = "from worker.delivery import Turn; from pathlib import Path; import sys; "
    asking += "Turn().take(Path(sys.argv[1]), sys.argv[2]); print('taken')"

    def ask(task_id):
        command = [sys.executable, "-c", asking, str(home), task_id]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with ask("two") as other, ask("one") as same:
        assert other.stdout.read() == "taken\n"
        with pytest.raises(subprocess.TimeoutExpired):
            same.wait(1)
        turn.leave()
        assert same.stdout.read() == "taken\n"
