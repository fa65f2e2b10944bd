"""The log of a job grows with its steps, and no faster."""

from __future__ import annotations

import contextlib

import pytest

from bench import store as bench
from worker.history import History
from worker.hooks import Run
from worker.messages import Job, Message, Reply, ToolCall, ToolResult, Usage
from worker.store.database import open_store
from worker.testing import ok


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/caisson.db")) as store:
        yield store


def test_the_log_of_the_real_loop_grows_with_its_steps(store):
    figures = {figure.name: figure.value for figure in bench.growth(store, (40, 160))}
    assert figures["log of 40 steps"] > 50_000
    assert figures["log of 160 steps"] / 4 == pytest.approx(figures["log of 40 steps"], rel=0.1)


def step(run, number):
    """What the loop stores of a step."""
    call = ToolCall(id="x", name="shell", arguments=f'{{"command": "seq {number:04d}"}}')
    message = Message(role="assistant", content="next", tool_calls=(call,))
    run.add_reply(Reply(message=message, usage=Usage(input_tokens=900, output_tokens=9)))
    call = run.history.last.calls[0]
    run.begin(call, "place")
    execution = ok("line\n" * 50, exit_code=0)
    result = ToolResult(
        call_id=call.id, name="shell", status="ok", text="status: ok", execution=execution
    )
    run.add_result(result)


def test_the_hundredth_step_takes_as_much_room_as_the_thousandth(store):
    sizes = {}
    for steps in (100, 1000):
        job = Job(id=f"j{steps}", goal="g")
        store.create(job)
        run = Run(History(job), store, store.claim(job.id).generation)
        for number in range(steps):
            step(run, number)
        sizes[steps] = bench.log_bytes(store, job.id)
    assert store.get("j1000").job.steps == 1000
    assert sizes[100] > 50_000
    assert sizes[1000] / 10 == pytest.approx(sizes[100], rel=0.1)


def test_the_table_has_every_figure(capsys):
    arguments = ("--rounds", "20", "--jobs", "5", "--steps", "2,5", "--stores", "memory,sqlite")
    assert bench.main(arguments) == 0
    said = capsys.readouterr().out
    for name in ("event, median", "new job, median", "claim and release, median"):
        assert said.count(name) == 2
    assert said.count("log of 5 steps") == 2
    (row,) = (line for line in said.splitlines() if "a job of 2 steps" in line and "rows" in line)
    # job, order, attempt, and its events: two messages, two replies, a call, a result, the end
    assert row.split()[-2:] == ["10", "rows"]
