"""A job that is killed at any moment and driven again has the same end, and does nothing twice."""

from __future__ import annotations

import pytest

from worker.messages import FinishReason, ResultStatus
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ok, say


class Killed(BaseException):
    """The process is gone; nothing catches this."""


class DyingStore(MemoryStore):
    """Kills its process at the nth write, before or after the event is kept."""

    def __init__(self):
        super().__init__()
        self.die_at = None
        self.keep = True
        self.writes = 0

    def append(self, job_id, event, *, generation):
        self.writes += 1
        if self.writes == self.die_at and not self.keep:
            raise Killed
        super().append(job_id, event, generation=generation)
        if self.writes == self.die_at:
            raise Killed


SCRIPT = (
    say("one", ("python_interpreter", {"code": "add a"}), ("shell", {"command": "add b"})),
    say(None, ("python_interpreter", '{"code": "add c')),  # cut: refused, never run
    say(""),  # empty: nudged
    say(None, ("write_file", {"name": "d", "content": "d"}), ("no_tool", {})),
    say(None, ("python_interpreter", {"code": "same"})),
    say(None, ("python_interpreter", {"code": "same"})),  # nudged
    say("the end"),
)
LOOPING = (say("hm", ("python_interpreter", {"code": "again"})),) * 6 + (say("so far: 4"),)
SPENT = (*SCRIPT[:2], say("all I know"))
LONG = (*(say("w" * 900, ("shell", {"command": f"add {i}"})) for i in range(14)), say("the end"))
EVENTS = 2 + 7 + 7 * 2 + 2 + 1  # opening, replies, calls with results, nudges, end


def add(sandbox, kind, text):
    name = text.split()[-1]
    sandbox.contents[name] = sandbox.contents.get(name, b"") + b"x"
    return ok(text)


def play(bench, die_at=None, *, script=SCRIPT, keep=True, **settings):
    b = bench(*script, respond=add, store=DyingStore(), **settings)
    b.store.die_at, b.store.keep = die_at, keep
    try:
        b.drive()
    except Killed:
        b.drive()
    return b


def essence(b):
    """What must not depend on when the worker was killed."""
    job, results = (
        b.history.job,
        [(r.call_id, r.status, r.text.split("\n", 1)[1]) for r in b.results],
    )
    return job.summary() | {"id": None}, results, [n.text for n in b.notices], b.sandbox.contents


@pytest.mark.parametrize("keep", [True, False], ids=["stored", "not stored"])
def test_killed_at_any_write_the_end_is_the_same(bench, keep):
    whole = play(bench)
    assert whole.store.writes == EVENTS
    for die_at in range(1, EVENTS + 1):
        again = play(bench, die_at, keep=keep)
        assert essence(again) == essence(whole), die_at
        assert again.sandbox.ran == whole.sandbox.ran, die_at  # each effect exactly once


@pytest.mark.parametrize(
    ("script", "settings", "reason"),
    [(LOOPING, {}, FinishReason.LOOP), (SPENT, {"max_steps": 2}, FinishReason.BUDGET)],
)
def test_so_is_the_end_of_a_job_that_is_stopped(bench, script, settings, reason):
    whole = play(bench, script=script, **settings)
    assert whole.history.job.finish_reason is reason
    assert whole.history.job.answer
    for die_at in range(1, whole.store.writes + 1):
        again = play(bench, die_at, script=script, **settings)
        assert essence(again) == essence(whole), die_at
        assert again.sandbox.ran == whole.sandbox.ran, die_at


@pytest.mark.parametrize("keep", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("note", [say("notes", usage={"input_tokens": 7}), say("")])
def test_so_is_the_end_of_a_job_whose_old_steps_are_summed_up(bench, note, keep):
    given = {"script": LONG, "notes": [note] * 99, "context_tokens": 4096, "max_output_tokens": 500}
    whole = play(bench, **given)
    assert whole.watching.of("summary")
    for die_at in range(1, whole.store.writes + 1, 5):
        again = play(bench, die_at, keep=keep, **given)
        assert essence(again) == essence(whole), die_at
        assert again.model.requests[-1].messages == whole.model.requests[-1].messages


def test_killed_inside_a_call_its_result_is_taken_not_run_again(bench):
    def respond(sandbox, kind, text):
        add(sandbox, kind, text)
        sandbox._results[f"{b.job.id}.c00000001"] = ok("what it printed")
        raise Killed

    b = bench(say(None, ("python_interpreter", {"code": "add a"})), say("end"), respond=respond)
    with pytest.raises(Killed):
        b.drive()
    assert b.drive().answer == "end"
    assert b.sandbox.ran == ["add a"]
    assert "what it printed" in b.results[0].text


def test_in_another_sandbox_the_model_is_told_that_nobody_knows(bench):
    def respond(sandbox, kind, text):
        raise Killed

    b = bench(say(None, ("shell", {"command": "rm x"})), say("end"), respond=respond)
    with pytest.raises(Killed):
        b.drive()
    b.sandbox = FakeSandbox(add)
    assert b.drive().finish_reason is FinishReason.ANSWERED
    assert b.sandbox.ran == []
    assert b.results[0].status is ResultStatus.UNKNOWN
    assert "nobody knows whether it ran" in b.results[0].text


def test_another_sandbox_that_knows_the_call_gives_its_result(bench):
    def respond(sandbox, kind, text):
        raise Killed

    b = bench(say(None, ("shell", {"command": "rm x"})), say("end"), respond=respond)
    with pytest.raises(Killed):
        b.drive()
    b.sandbox = FakeSandbox(add)
    b.sandbox._results[f"{b.job.id}.c00000001"] = ok("it had ended")
    b.drive()
    assert "it had ended" in b.results[0].text
    assert b.sandbox.ran == []


def test_a_call_without_effects_is_simply_repeated_elsewhere(bench):
    def respond(sandbox, kind, text):
        raise Killed

    b = bench(say(None, ("search_files", {"pattern": "x"})), say("end"), respond=respond)
    with pytest.raises(Killed):
        b.drive()
    b.sandbox = FakeSandbox(lambda *_: ok("found"))
    b.drive()
    assert b.results[0].status is ResultStatus.OK
