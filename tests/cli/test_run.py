"""`caisson run`: a job from its goal to its answer, for programs and for people."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, commands_in, containers_of, wait_for

KEYS = ["id", "status", "finish_reason", "answer", "steps", "usage", "artifacts", "error"]
WORK = {"say": "I count.", "python_interpreter": {"code": "total = sum(range(5))\nprint(total)"}}
UNISOLATED = {"CAISSON_DRIVER": "process", "CAISSON_ALLOW_UNISOLATED": "true"}
ESCAPES = re.compile(r"\x1b[^m]*m")


@pytest.mark.engine
def test_a_job_is_one_object_with_the_promised_keys(caisson, recording, tmp_path):
    save = {"python_interpreter": {"code": "open('out.txt', 'w').write(str(total))"}}
    turns = recording(WORK, save, "The sum is 10.")
    ended = caisson("run", "add up", "--replay", turns, "--json")
    found = ended.object
    assert ended.code == 0
    assert list(found) == KEYS
    assert (found["status"], found["finish_reason"]) == ("succeeded", "answered")
    assert (found["answer"], found["steps"], found["error"]) == ("The sum is 10.", 3, None)
    assert set(found["usage"]) == {"input_tokens", "output_tokens", "cost"}
    (artifact,) = found["artifacts"]
    assert {k: artifact[k] for k in ("name", "size", "mime")} == {
        "name": "out.txt",
        "size": 2,
        "mime": "text/plain",
    }
    assert Path(artifact["path"]).read_text() == "10"


@pytest.mark.engine
def test_a_person_sees_thought_code_output_budget_answer_and_files(caisson, recording):
    save = {"python_interpreter": {"code": "open('out.txt', 'w').write(str(total))"}}
    ended = caisson("run", "add up", "--replay", recording(WORK, save, "The **sum** is 10."))
    lines = [line.strip() for line in ended.out.splitlines()]
    wanted = ["add up", "I count.", "total = sum(range(5))", "│ 10", "The **sum** is 10."]
    places = [lines.index(line) for line in wanted]
    assert places == sorted(places)
    assert any("29 steps" in line and "left" in line for line in lines)
    assert any(line.startswith("+ out.txt") for line in lines)
    assert lines[-1].startswith("files in /")
    assert "\x1b" not in ended.out
    assert not ended.err


@pytest.mark.engine
def test_what_was_recorded_can_be_replayed(caisson, recording, tmp_path):
    turns = recording(WORK, "10")
    first = caisson("run", "add", "--replay", turns, "--record", "again.jsonl", "--json")
    again = caisson("run", "add", "--replay", "again.jsonl", "--json")
    assert first.object["answer"] == again.object["answer"] == "10"
    lines = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert [line["role"] for line in lines] == ["assistant", "assistant"]


@pytest.mark.engine
def test_a_spent_budget_is_exit_code_3_and_named(caisson, recording):
    turns = recording(*({"shell": {"command": f"echo {n}"}} for n in range(5)), "late")
    ended = caisson("run", "x", "--replay", turns, "--max-steps", "2", "--json")
    assert ended.code == 3
    assert ended.object["finish_reason"] == "budget"
    assert "max_steps" in ended.object["error"]["message"]


@pytest.mark.engine
def test_going_in_circles_is_exit_code_3(caisson, recording):
    turns = recording(*[{"shell": {"command": "echo same"}}] * 10)
    ended = caisson("run", "x", "--replay", turns, "--json")
    assert ended.code == 3
    assert ended.object["finish_reason"] == "loop"


def test_without_an_engine_the_job_is_dead_and_the_exit_code_5(caisson, recording):
    where = {"DOCKER_HOST": "unix:///nowhere.sock"}
    ended = caisson("run", "x", "--replay", recording(WORK, "10"), "--json", **where)
    assert ended.code == 5
    assert ended.object["status"] == "dead"
    assert ended.err.count("\n") == 1
    assert "nowhere.sock" in ended.err


def test_a_failure_of_ours_is_told_once_and_without_the_name_of_a_class(caisson, recording):
    ended = caisson("run", "x", "--replay", recording("10"), DOCKER_HOST="unix:///nowhere.sock")
    assert ended.code == 5
    assert ended.err == ""
    said = [line for line in ended.out.splitlines() if "nowhere.sock" in line]
    assert len(said) == 1
    assert said[0].startswith("  no Docker engine answers at unix:///nowhere.sock")


@pytest.mark.engine
def test_what_a_model_says_is_neither_markup_nor_terminal_escapes(caisson, recording):
    nasty = "[red]r[/red] [/] \x1b[31mE\x1b]8;;http://x\x07L \x9b2J :smile: [link=http://y]z[/link]"
    work = {"say": nasty, "shell": {"command": "printf '[bold]%s[/]\\033[2J' out"}}
    turns = recording(work, nasty)
    seen = caisson("run", nasty, "--replay", turns)
    assert seen.code == 0
    assert "\x1b" not in seen.out
    assert "\x9b" not in seen.out
    assert seen.out.count("[red]r[/red] [/] E") >= 3
    assert "[bold]out[/]" in seen.out
    coloured = caisson("run", nasty, "--replay", turns, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b]8" not in coloured.out
    assert "\x1b[2J" not in coloured.out
    assert "[red]r[/red]" in ESCAPES.sub("", coloured.out)


@pytest.mark.engine
def test_a_terminal_gets_colours_unless_it_says_no(environment, recording, tmp_path):
    def on_terminal(**env):
        main, other = pty.openpty()
        process = subprocess.Popen(
            [COMMAND, "run", "add up", "--replay", recording(WORK, "**10**")],
            cwd=tmp_path,
            env={**environment, "TERM": "xterm-256color", **env},
            stdout=other,
            stderr=other,
        )
        os.close(other)
        out = b""
        try:
            while data := os.read(main, 4096):
                out += data
        except OSError:
            pass  # how Linux says that the other end of a terminal is closed
        os.close(main)
        assert process.wait(30) == 0
        return out.decode()

    coloured = on_terminal()
    assert "\x1b[32m✓" in coloured
    assert "**10**" not in coloured
    plain = on_terminal(NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain)


@pytest.mark.engine
@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_shows_what_was_done_and_leaves_no_container(begin, recording, as_json):
    code = "print('halfway', flush=True)\nimport os, time\nos.system('sleep 78 &')\ntime.sleep(60)"
    wait = {"python_interpreter": {"code": code}}
    process = begin("run", "x", "--replay", recording(WORK, wait, "no"), *["--json"] * as_json)
    wait_for(lambda: "sleep 78" in commands_in(containers_of(process.pid)))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert not containers_of(process.pid)
    if as_json:
        assert json.loads(out)["status"] == "cancelled"
        assert json.loads(out)["steps"] == 2
    else:
        assert "│ 10" in out
        assert "halfway" in out
        assert "cancelled" in out


def test_a_reader_that_goes_away_does_not_end_the_work(begin, recording):
    work = {"python_interpreter": {"code": "open('out.txt', 'w').write('1')"}}
    process = begin(
        "run",
        "count",
        "--replay",
        recording(work, "done"),
        **UNISOLATED,
    )
    process.stdout.close()
    assert process.wait(30) == 0
    assert not process.stderr.read()


def test_a_recording_may_come_through_a_pipe_and_be_given_up(begin, tmp_path):
    def start():
        process = begin("run", "x", "--replay", "pipe", **UNISOLATED)
        wait_for(lambda: has_open(process.pid, tmp_path / "pipe"))
        return process

    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    waiting = start()
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=5) == ("", "caisson: cancelled\n")
    assert waiting.returncode == 130
    reading = start()
    os.write(writer, b'{"content": "all done"}\n')
    os.close(writer)
    assert "all done" in reading.communicate(timeout=20)[0]
    assert reading.returncode == 0


def has_open(pid, path):
    with suppress(FileNotFoundError):  # closed while we look
        return any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    return False
