"""How jobs are shown: ages, notes, attempts; nothing of a job is taken for markup or escapes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from worker.listing import age_text, note, workers_text, write_job, write_jobs
from worker.messages import FinishReason, Input, Job, JobError, Order, Status
from worker.store.base import Attempt, Listed, WorkerSeen
from worker.terminal import make_console

NASTY = "[red]r[/red] \x1b[31mE\x1b]8;;http://x\x07L\n:smile: \x9b2J"
NOW = 1_000_000.0


def listed(status=Status.QUEUED, **fields):
    job = Job(id=fields.pop("id", "j"), goal=fields.pop("goal", "g"), status=status)
    job = job.model_copy(update=fields.pop("job", {}))
    return Listed(job=job, created_at=NOW - 90, **fields)


@pytest.fixture
def shown():
    """What is written to a terminal of this width; without one, to a pipe."""

    def run(write, *arguments, width=None):
        file = io.StringIO()
        console = make_console(file)
        if width is not None:
            console = Console(
                file=file, force_terminal=True, color_system=None, width=width, markup=False
            )
        write(console, *arguments)
        return file.getvalue()

    return run


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (2 * 86_400 - 1, "47 h"),
        (2 * 86_400, "2 d"),
    ],
)
def test_ages_are_told_in_their_largest_unit(seconds, text):
    assert age_text(seconds) == text


def test_notes_say_who_works_what_is_waited_for_and_why_it_failed():
    workers = [WorkerSeen(name="w1")]
    error = {"error": JobError(type="Loop", message="six times\nthe same")}
    assert note(listed(), workers) == "waits for a worker"
    assert note(listed(Status.RUNNING, is_held=True, worker="w1"), workers) == "on w1"
    assert note(listed(Status.RUNNING, worker="w1"), workers).endswith("its own was lost")
    assert note(listed(Status.SUCCEEDED), workers) == ""
    assert note(listed(Status.FAILED, job=error), workers) == "six times the same"
    assert note(listed(Status.CANCELLED, job=error), workers) == ""


def test_workers_are_counted():
    assert workers_text([WorkerSeen(name="a")]) == "1 worker was seen in the last minute: a"
    two = [WorkerSeen(name="a"), WorkerSeen(name="b")]
    assert workers_text(two) == "2 workers were seen in the last minute: a, b"


def test_a_broker_that_is_away_is_blamed_and_not_the_workers():
    fault = "the broker redis://h/0 cannot be reached: it is off"
    assert note(listed(), [], fault) == f"waits for the broker; {fault}"
    assert workers_text([], fault) == f"{fault}; until it does its work, workers begin no job"
    assert note(listed(waits_for="2 CPUs"), [], fault) == "waits for 2 CPUs"
    assert note(listed(Status.RUNNING, is_held=True, worker="w1"), [], fault) == "on w1"


@pytest.mark.parametrize("width", [None, 40, 80, 200])
def test_nothing_of_a_job_is_markup_or_an_escape(shown, width):
    found = listed(
        goal=NASTY,
        job={
            "model": NASTY,
            "answer": NASTY,
            "finish_reason": FinishReason.FAILED,
            "error": JobError(type="x", message=NASTY),
            "status": Status.FAILED,
        },
        order=Order(key=NASTY, inputs=(Input(name=NASTY, size=1, sha256=""),), mounts=(NASTY,)),
        ended_at=NOW,
    )
    attempts = [Attempt(generation=n, worker=NASTY, started_at=NOW) for n in (1, 2)]
    text = shown(write_jobs, [found], [], NOW, width=width)
    text += shown(write_job, found, attempts, NASTY, NOW, width=width)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "[red]r[/red]" in text
    assert ":smile:" in text


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_is_given_no_line_that_is_too_long(shown, width):
    jobs = [listed(id=f"20261130-012810-{n:06x}", goal="long " * 40) for n in range(3)]
    jobs.append(listed(waits_for="much " * 40))
    lines = shown(write_jobs, jobs, [], NOW, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 1 + 2 * len(jobs)
    assert all("20261130-012810-00000" in line for line in lines[1:6:2])


def test_a_pipe_is_given_a_job_on_a_line(shown):
    jobs = [listed(goal="long " * 40), listed(waits_for="much " * 40)]
    lines = shown(write_jobs, jobs, [], NOW).splitlines()
    assert len(lines) == 3
    assert "much much" in lines[2]
    assert all(line == line.rstrip() for line in lines)


def test_one_attempt_needs_no_list_and_several_are_told_by_their_ends(shown):
    endings = ["lost", "released", "finished"]
    attempts = [
        Attempt(generation=n, worker=f"w{n}", started_at=NOW - 9, ended_at=NOW, ending=ending)
        for n, ending in enumerate(endings, 1)
    ]
    found = listed(Status.SUCCEEDED, ended_at=NOW)
    text = shown(write_job, found, attempts, "", NOW)
    assert all(part in text for part in ("w1  was lost  9.0 s", "w2  let go of it", "w3  finished"))
    assert "attempts" not in shown(write_job, found, attempts[:1], "", NOW)
    running = shown(write_job, listed(), [*attempts[:1], attempts[1]], "waits for it", NOW)
    assert "○ queued  waits for it" in running
    assert "watch it: caisson watch j" in running
