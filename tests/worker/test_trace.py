"""What a person sees of a job; and that a terminal which goes away ends no job."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from worker import assembly
from worker.following import doing
from worker.history import History
from worker.messages import (
    Artifact,
    ArtifactsAdded,
    CallStarted,
    Ended,
    FinishReason,
    Job,
    JobError,
    Message,
    MessageAdded,
    NoticeAdded,
    Remarked,
    Reply,
    ReplyAdded,
    ResultAdded,
    ResultStatus,
    Role,
    SandboxOpened,
    SandboxReplaced,
    Status,
    SummaryAdded,
    ToolCall,
    ToolResult,
    Usage,
    WindowLearnt,
)
from worker.terminal import Activity
from worker.testing import say
from worker.trace import Glance, Trace


class Gone(io.StringIO):
    """A terminal that goes away after so many writes."""

    def __init__(self, writes):
        super().__init__()
        self.left = writes

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("view", [Trace, Glance])
@pytest.mark.parametrize("writes", [0, 1, 5, 10_000])
def test_a_terminal_that_goes_away_does_not_end_the_work(bench, view, writes):
    file = Gone(writes)
    b = bench(say(None, ("python_interpreter", {"code": "1"})), say("done"))
    b.watching = view(Console(file=file, force_terminal=True, width=80))
    job = b.drive()
    b.watching.close(job)
    assert job.answer == "done"
    assert b.sandbox.ran == ["1"]
    assert file.left < 0 or writes == 10_000


def test_each_moment_of_a_view_is_guarded(bench):
    b = bench(say("done"))
    run = b.run()
    for view in (Trace, Glance):
        seen = view(Console(file=Gone(0), force_terminal=True, width=80))
        seen.on_asking(run.history)
        seen.on_asking(run.history)
        seen.close(run.job)
    assert assembly.build(b.settings, b.model, b.place).drive(run).answer == "done"


EVIL = "\x1b]0;OWNED\x07\x9b2J\x1b[2J\x1b[31mname"
CALL = ToolCall(id="c00000001", name=EVIL, arguments=json.dumps({EVIL: EVIL}), repaired=EVIL)
SPOKEN = Message(role=Role.ASSISTANT, content=EVIL, tool_calls=(CALL,))
RESULT = ToolResult(call_id=CALL.id, name=EVIL, status=ResultStatus.OK, text=EVIL)
FILE = Artifact(name=EVIL, size=1, mime=EVIL, path=f"/{EVIL}", source=EVIL)
EVIL_EVENTS = (
    MessageAdded(message=Message(role=Role.USER, content=EVIL)),
    SandboxOpened(place=EVIL, engine=EVIL),
    ReplyAdded(reply=Reply(message=SPOKEN, model=EVIL)),
    CallStarted(call_id=CALL.id, place=EVIL),
    ResultAdded(result=RESULT),
    NoticeAdded(text=EVIL, reason=EVIL, why=EVIL),
    Remarked(text=EVIL),
    SummaryAdded(text=EVIL, steps=2, model=EVIL),
    SummaryAdded(fault=EVIL),
    WindowLearnt(tokens=9, why=EVIL),
    SandboxReplaced(why=EVIL),
    ArtifactsAdded(artifacts=(FILE,)),
    Ended(
        status=Status.FAILED,
        finish_reason=FinishReason.FAILED,
        answer=EVIL,
        error=JobError(type=EVIL, message=EVIL),
    ),
)


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("view", [Trace, Glance])
def test_nothing_that_a_job_has_said_is_acted_on_by_the_terminal(view, is_terminal):
    file = io.StringIO()
    seen = view(Console(file=file, force_terminal=is_terminal, width=80))
    history = History(Job(id=EVIL, goal=EVIL, model=EVIL))
    for event in EVIL_EVENTS:
        history.add(event)
        seen.on_asking(history)
        seen.on_event(event, history)
        seen.on_standing(doing(history), is_waiting=False)
    seen.on_standing(EVIL, is_waiting=True)
    seen.on_change(EVIL)
    seen.close(history.job)
    shown = file.getvalue()
    for sequence in ("\x1b]0;", "OWNED", "\x1b[2J", "\x1b[31mname", "\x9b"):
        assert sequence not in shown
    assert "name" in shown


def test_the_goal_stands_out_from_what_the_model_is_told_with_it():
    file = io.StringIO()
    seen = Trace(Console(file=file, force_terminal=True, color_system="standard", width=80))
    history = History(Job(id="j", goal=" Why?\nTell.\n", model="m"))
    told = Message(role=Role.USER, content="Why?\nTell.\n\nFiles in the current folder:\n- x.csv")
    history.add(event := MessageAdded(message=told))
    seen.on_event(event, history)
    seen.hide()
    lines = file.getvalue().splitlines()
    assert "  \x1b[1mWhy?\x1b[0m" in lines
    assert "  \x1b[1mTell.\x1b[0m" in lines
    assert "  \x1b[2m- x.csv\x1b[0m" in lines


def test_a_pipe_is_told_once_what_a_job_waits_for():
    file = io.StringIO()
    view = Trace(Console(file=file))
    for free in ("1.5 GiB", "1.4 GiB"):
        view.on_standing(f"it waits for 2 GiB of memory; h has {free} left", is_waiting=True)
    view.on_standing("the model thinks", is_waiting=False)
    view.on_standing("it waits for a worker", is_waiting=True)
    assert file.getvalue().splitlines() == [
        "· it waits for 2 GiB of memory; h has 1.5 GiB left",
        "· it waits for a worker",
    ]


def test_what_takes_long_is_said_and_what_does_not_is_not():
    def shown(work_s, after_s):
        file = io.StringIO()
        activity = Activity(Console(file=file, force_terminal=True, width=80))
        with activity.during_long("waiting for it", after_s):
            time.sleep(work_s)
        return file.getvalue()

    assert "waiting for it" in shown(0.3, after_s=0.05)
    assert not shown(0.01, after_s=60)


def test_a_view_whose_reader_went_away_says_so():
    view = Trace(Console(file=Gone(0), force_terminal=True, width=80))
    assert not view.is_gone
    view.on_change("another worker")
    assert view.is_gone


def shown_call(code, *, width=80, is_terminal=True, whole=""):
    """The lines of a call of the shell."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=width, color_system=None)
    view = Trace(console, whole)
    call = ToolCall(id="c1", name="shell", arguments=json.dumps({"command": code}))
    history = History(Job(id="j", goal="g"))
    spoken = Reply(message=Message(role=Role.ASSISTANT, tool_calls=(call,)))
    for event in (SandboxOpened(place="p"), ReplyAdded(reply=spoken)):
        history.add(event)
        view.on_event(event, history)
    result = ResultAdded(
        result=ToolResult(call_id="c1", name="shell", status=ResultStatus.OK, text="")
    )
    view.on_event(result, history)
    lines = file.getvalue().split("shell  call 1\n")[1].splitlines()
    return [line[4:] for line in lines if line.startswith("    ")]


def test_one_long_line_of_code_is_folded_and_its_end_is_there():
    code = " && ".join(f"step{number} --flag" for number in range(60))
    lines = shown_call(code)
    assert len(lines) > 10
    assert " ".join(lines) == code
    assert max(map(len, lines)) <= 76


def test_a_word_that_is_longer_than_a_line_is_folded_too():
    assert "".join(shown_call("x" * 500 + "END")) == "x" * 500 + "END"


def test_what_is_very_long_is_shown_by_both_ends_with_how_much_is_missing_and_where_it_is():
    code = "".join(f"{number:04} " for number in range(2000)) + "END"
    lines = shown_call(code, whole="caisson watch j --json has them")
    assert len(lines) == 41
    assert lines[0].startswith("0000 0001 ")
    assert lines[-1].endswith("1999 END")
    note = "".join(line for line in lines if "…" in line)
    assert note == "… 94 more lines, 7,050 characters; caisson watch j --json has them …"


def test_many_lines_of_code_are_shown_by_both_ends_in_a_pipe_as_well():
    lines = shown_call("\n".join(f"echo {number}" for number in range(100)), is_terminal=False)
    assert lines[29:32] == ["echo 29", "… 60 more lines, 420 characters …", "echo 90"]
    assert shown_call("x" * 9000, is_terminal=False) == ["x" * 9000]


class Paid:
    """Another model, whose replies cost something."""

    name = "m"
    usage = Usage(input_tokens=1234, output_tokens=56, cost=0.25)

    def __init__(self, model):
        self.model = model

    def reply(self, request, **options):
        paid = {"usage": self.usage, "model": "m-1", "remarks": ("b stood in for a",)}
        reply = self.model.reply(request, **options)
        return reply.model_copy(update={**paid, "duration_s": 2.34})


def test_each_step_says_who_answered_what_it_took_and_what_was_odd(bench):
    b = bench(say(None, ("python_interpreter", {"code": "1"})), say("done"))
    b.model = Paid(b.model)
    file = io.StringIO()
    b.watching = Trace(Console(file=file, width=100))
    job = b.drive()
    b.watching.close(job)
    shown = file.getvalue()
    assert shown.count("m-1 · 1,234 tokens in, 56 out · cost 0.2500 · 2.3 s") == 2
    assert shown.count("· b stood in for a") == 2
    assert "2 steps · 2,580 tokens · cost 0.5000" in shown
