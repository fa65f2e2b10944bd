"""The built-in tools over a real guest; in a container where there is an engine."""

from __future__ import annotations

import json
import time

import pytest

from sandbox.types import Limits, SandboxSpec
from worker import assembly
from worker.builtin import Workplace, builtin_tools, prepare
from worker.runner import JobRequest, run_job
from worker.settings import Settings
from worker.testing import say
from worker.tools import CallContext


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.engine), "process"])
def place(request, job):
    settings = Settings(driver=request.param, allow_unisolated=True)
    spec = SandboxSpec(job=job, limits=Limits(output_bytes=4096))
    place = Workplace(lambda: assembly.start_sandbox(settings, spec))
    place.open()
    yield place
    place.close()


@pytest.fixture
def call(place, bench):
    """Let the model make one call after the other; returns their results."""

    def run(*calls, **settings):
        b = bench(*[say(None, c) for c in calls], say("done"), **settings)
        loop = assembly.build(b.settings, b.model, place)
        job = loop.drive(b.run())
        assert job.answer == "done", job.error
        return b.results

    return run


def python(code, **more):
    return ("python_interpreter", {"code": code, **more})


def test_a_second_call_sees_the_variables_of_the_first(call):
    results = call(python("x = 20"), python("print('hi')\nx + 1"))
    assert "interpreter kept" in results[1].text
    assert results[1].text.endswith("output:\nhi\nvalue:\n21")
    assert "nothing was printed" in results[0].text


def test_an_error_comes_with_its_line_and_a_hint(call):
    text = call(python("import math\nmath.sqroot(4)"))[0].text
    assert "AttributeError: module 'math' has no attribute 'sqroot'" in text
    assert "line 2: math.sqroot(4)" in text


def test_a_name_that_is_almost_right_is_found(call):
    text = call(python("total_count = 1"), python("totl_count + 1"))[1].text
    assert "closest: total_count" in text


def test_a_missing_file_is_answered_with_what_is_there(call):
    results = call(
        ("write_file", {"name": "data.csv", "content": "a\n"}), python("open('dat.csv')")
    )
    assert "closest: data.csv" in results[1].text


def test_tools_are_looked_at_once_for_all_jobs(place):
    prepare()
    names = Settings().tools
    one, other = builtin_tools(place, names), builtin_tools(Workplace(lambda: None), names)
    assert all(a.parameters is b.parameters for a, b in zip(one, other, strict=True))


def test_a_call_has_its_own_time_limit(call):
    started = time.monotonic()
    results = call(python("while True: pass", timeout_s=1), ("shell", {"command": "echo on"}))
    assert time.monotonic() - started < 6
    assert results[0].text.startswith("status: timeout")
    assert "larger timeout_s" in results[0].text
    assert "on" in results[1].text


def test_the_most_that_a_call_may_ask_for_is_a_setting(place):
    place.max_timeout_s = 1.0
    started = time.monotonic()
    tool = builtin_tools(place, ["shell"])[0]
    assert tool.name == "shell"
    context = CallContext(1, "x.1", None, 100.0, lambda: False)
    execution = tool.run(context, {"command": "sleep 20", "timeout_s": 50})
    assert execution.outcome == "timeout"
    assert time.monotonic() - started < 5


def test_a_call_never_outlasts_the_job(call, place):
    context = CallContext(1, "x.1", None, 0.2, lambda: False)
    started = time.monotonic()
    assert place.python(context, "import time; time.sleep(20)").outcome == "timeout"
    assert time.monotonic() - started < 5


def test_a_running_call_ends_soon_after_a_cancel(place):
    until = time.monotonic() + 0.5
    context = CallContext(1, "x.1", None, 100.0, lambda: time.monotonic() > until)
    started = time.monotonic()
    place.shell(context, "sleep 20")
    assert time.monotonic() - started < 4


def test_a_calculation_hears_a_cancel(place):
    (tool,) = builtin_tools(place, ["calculate"])
    context = CallContext(1, "x.1", None, 100.0, lambda: True)
    assert tool.run(context, {"expression": "sum(range(10**12))"}).error.type == "Cancelled"


def test_files_are_written_and_read_by_lines(call):
    lines = "".join(f"line {i}\n" for i in range(1, 501))
    results = call(
        ("write_file", {"name": "sub/long.txt", "content": lines}),
        ("read_file", {"name": "sub/long.txt"}),
        ("read_file", {"name": "sub/long.txt", "offset": 499, "lines": 10}),
        ("read_file", {"name": "sub/long.txt", "offset": 900}),
        ("read_file", {"name": "nothing.txt"}),
        ("read_file", {"name": "sub"}),
        ("write_file", {"name": "../out.txt", "content": "x"}),
    )
    assert f"wrote {len(lines)} bytes to sub/long.txt" in results[0].text
    assert "1\tline 1\n" in results[1].text
    assert "[lines 1-200 of 500]" in results[1].text
    assert results[2].text.endswith("499\tline 499\n500\tline 500\n[lines 499-500 of 500]")
    assert "[500 lines]" in results[3].text
    assert "nothing.txt: No such file or directory" in results[4].text
    assert "not a regular file" in results[5].text
    assert results[6].status == "error"
    assert [r.status.value for r in results[4:6]] == ["error", "error"]


def test_files_that_are_no_text_are_said_to_be(call):
    results = call(
        python(
            "n = open('b', 'wb').write(b'a\\0b')\nopen('l', 'wb').write(b'\\xe9t\\xe9 ' * 9000)"
        ),
        ("read_file", {"name": "b"}),
        ("read_file", {"name": "l"}),
    )
    assert "is not text" in results[1].text
    assert "�t�" in results[2].text
    assert len(results[2].text) < 3000


def test_quotes_and_options_in_arguments_are_only_text(call, tmp_path):
    evil = "'; touch hacked; echo '$(touch hacked)`touch hacked`"
    results = call(
        ("read_file", {"name": evil}),
        ("search_files", {"pattern": evil, "glob": evil}),
        ("read_file", {"name": "--help"}),
        ("shell", {"command": "ls"}),
    )
    assert "No such file" in results[0].text
    assert "[0 lines in 0 text files]" in results[1].text
    assert "hacked" not in results[3].text


def test_files_are_searched(call):
    results = call(
        ("write_file", {"name": "a.log", "content": "ok\nERROR 17: disk\n"}),
        ("write_file", {"name": "d/b.log", "content": "error 4\n" * 200}),
        ("write_file", {"name": "c.txt", "content": "ERROR here\n"}),
        ("search_files", {"pattern": r"ERROR \d+"}),
        ("search_files", {"pattern": "(?i)error", "glob": "*.log"}),
        ("search_files", {"pattern": "("}),
    )
    assert "a.log:2: ERROR 17: disk\n[1 lines in 3 text files]" in results[3].text
    assert "d/b.log:1: error 4" in results[4].text
    assert "[201 lines in 2 text files (the first 100 are shown)]" in results[4].text
    assert "not a regular expression" in results[5].text


def test_a_pipe_among_the_files_holds_nothing_up(call):
    results = call(
        ("shell", {"command": "mkfifo pipe"}),
        ("search_files", {"pattern": "x"}),
        ("read_file", {"name": "pipe"}),
    )
    assert "[0 lines" in results[1].text
    assert "not a regular file" in results[2].text


def test_the_whole_of_a_cut_output_can_be_paged(call):
    results = call(
        ("shell", {"command": "seq 1 20000"}),
        ("read_output", {"call": 1}),
        ("read_output", {"call": 1, "page": 14}),
        ("read_output", {"call": 1, "page": 15}),
        ("read_output", {"call": 9}),
        ("read_output", {"call": 2}),
    )
    assert "read_output(call=1)" in results[0].text
    assert len(results[0].text) < 6000
    assert "[page 1 of 14 of call 1]\n1\n2\n" in results[1].text
    assert results[2].text.rstrip().endswith("20000")
    assert "has 14 pages" in results[3].text
    assert "no finished call 9" in results[4].text
    assert "[page 1 of 2 of call 2]" in results[5].text


def test_expressions_are_evaluated_beside_the_interpreter(call):
    results = call(
        ("calculate", {"expression": "sqrt(2) * pi"}),
        ("calculate", {"expression": "9**9**9"}),
        ("calculate", {"expression": "__import__('os')"}),
    )
    assert "4.44" in results[0].text
    assert all(r.status == "error" for r in results[1:])


def test_a_whole_job_runs_and_leaves_its_plot(place, tmp_path, monkeypatch, job):
    """From the goal to the artefact, with the driver of this test."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x,y\n1,2\n3,4\n")
    add = "sum(int(row.split(',')[1]) for row in open('t.csv').readlines()[1:])"
    write = f"open('sum.txt', 'w').write(str({add}))"
    turns = [
        say("I add.", python(write)),
        say(None, ("shell", {"command": "cat sum.txt"})),
        say("6"),
    ]
    (tmp_path / "turns.jsonl").write_text("\n".join(json.dumps(t) for t in turns))
    done = run_job(
        JobRequest(
            goal="Sum y.", files=(tmp_path / "t.csv",), replay=tmp_path / "turns.jsonl", id=job
        ),
        Settings(),
        open_sandbox=lambda spec: place.sandbox,
    )
    assert done.answer == "6"
    assert [(a.name, a.size) for a in done.artifacts] == [("sum.txt", 1)]
    assert (tmp_path / "caisson-out" / job / "sum.txt").read_text() == "6"
