"""`caisson exec`: code in a sandbox, for programs and for people."""

from __future__ import annotations

import json
import signal
import time

import psutil
import pytest

from tests.cli.conftest import commands_in, containers_of, wait_for

KEYS = [
    "outcome",
    "exit_code",
    "value",
    "output",
    "output_truncated",
    "output_bytes",
    "output_file",
    "error",
    "hint",
    "duration_s",
    "cpu_s",
    "peak_memory_bytes",
    "interpreter",
    "lost_names",
    "files",
    "background_processes",
]
ERROR_KEYS = ["type", "message", "line", "source", "frames"]


# ---- expressions, which need no engine


def test_an_expression_needs_no_engine(caisson):
    ended = caisson("exec", "--expression", "sqrt(2) * pi", "--json", DOCKER_HOST="unix:///nowhere")
    assert ended.code == 0
    assert list(ended.object) == KEYS
    assert ended.object["value"].startswith("4.44288")
    assert ended.object["interpreter"] == "none"


def test_people_get_the_value_on_stdout_and_the_account_on_stderr(caisson):
    ended = caisson("exec", "--expression", "6 * 7")
    assert ended.out == "42\n"
    assert "✓ ok" in ended.err


def test_a_person_may_give_a_call_more_time_than_a_model_may(caisson):
    assert caisson("exec", "--timeout", "400", "--expression", "1").out == "1\n"


def test_an_expression_that_never_ends_is_ended(caisson):
    ended = caisson("exec", "--expression", "9**9**9", "--json")
    assert ended.code == 0
    assert ended.object["outcome"] == "timeout"


def test_a_signal_ends_an_expression_at_once(begin):
    process = begin("exec", "--timeout", "20", "--expression", "sum(range(10**12))")
    wait_for(lambda: psutil.Process(process.pid).children())
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - begun < 3
    assert "cancelled" in err


def test_a_script_is_answered_line_by_line(begin):
    process = begin("exec", "--script", "-")
    for number in (1, 2):
        process.stdin.write(json.dumps({"expression": f"{number} + 1"}) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["value"] == str(number + 1)
    process.stdin.close()
    assert process.wait(10) == 0


def test_a_broken_line_ends_a_script_that_comes_from_a_pipe(caisson):
    ended = caisson("exec", "--script", "-", stdin='{"expression": "1"}\nnonsense\n')
    assert ended.code == 2
    assert json.loads(ended.out)["value"] == "1"
    assert "line 2" in ended.err


def test_a_reader_that_goes_away_is_no_traceback(begin):
    process = begin("exec", "--script", "-")
    process.stdout.close()
    process.stdin.write('{"expression": "1"}\n' * 3)
    process.stdin.close()
    assert process.wait(20) != 0
    assert "Traceback" not in process.stderr.read()


# ---- infrastructure


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_without_an_engine_it_says_so_in_one_line(caisson, as_json):
    ended = caisson("exec", "--python", "1", *as_json, DOCKER_HOST="unix:///nowhere.sock")
    assert ended.code == 5
    assert not ended.out
    assert ended.err.count("\n") == 1
    assert "nowhere.sock" in ended.err


@pytest.mark.engine
def test_an_image_that_is_missing_is_named(caisson):
    ended = caisson("exec", "--python", "1", "--image", "no/such:image")
    assert ended.code == 5
    assert ended.err.count("\n") == 1
    assert "no/such:image" in ended.err


# ---- in a container


@pytest.mark.engine
def test_an_execution_is_one_object_with_the_promised_keys(caisson, tmp_path):
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    code = "import csv\nopen('out.txt', 'w').write('x' * 5)\nprint(open('in.csv').read())\n6 * 7"
    ended = caisson("exec", "--python", code, "--file", "in.csv", "--json")
    found = ended.object
    assert ended.code == 0
    assert list(found) == KEYS
    assert (found["outcome"], found["value"], found["interpreter"]) == ("ok", "42", "kept")
    assert found["output"].startswith("a,b\n1,2\n")
    assert found["files"] == [{"name": "out.txt", "size": 5, "mime": "text/plain"}]
    assert found["error"] is found["hint"] is None


@pytest.mark.engine
def test_a_failure_has_its_line_and_a_hint_and_is_no_failure_of_ours(caisson):
    ended = caisson("exec", "--python", "x = 1\nimport panda", "--json")
    found = ended.object
    assert ended.code == 0
    assert found["outcome"] == "error"
    assert list(found["error"]) == ERROR_KEYS
    assert (found["error"]["line"], found["error"]["source"]) == (2, "import panda")
    assert "pandas" in found["hint"]


@pytest.mark.engine
def test_a_failure_for_people(caisson):
    ended = caisson("exec", "--python", "x = 1\nprint('before')\nx.nope")
    assert ended.code == 0
    assert ended.out == "before\n"
    assert "✗ error" in ended.err
    assert "line 3: x.nope" in ended.err


@pytest.mark.engine
def test_a_call_that_says_nothing_needs_no_advice(caisson):
    assert caisson("exec", "--python", "x = 1", "--json").object["hint"] is None


@pytest.mark.engine
def test_the_exit_code_of_a_shell_is_told_not_taken_over(caisson):
    ended = caisson("exec", "--shell", "echo hi; exit 3", "--json")
    assert ended.code == 0
    assert (ended.object["outcome"], ended.object["exit_code"]) == ("error", 3)


@pytest.mark.engine
def test_a_script_runs_in_one_sandbox(caisson, tmp_path):
    lines = [
        {"python": "x = 20"},
        {"python": "while True: pass", "timeout": 1},
        {"shell": "echo $((1 + 1)) > n; cat n"},
        {"python": "x + 22 if 'x' in globals() else 'lost'"},
        {"expression": "1 + 1"},
    ]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = caisson("exec", "--script", "s.jsonl")
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0
    assert [f["outcome"] for f in found] == ["ok", "timeout", "ok", "ok", "ok"]
    assert found[2]["output"] == "2\n"
    assert found[3]["value"] == "42" or found[1]["lost_names"] == ["x"]
    assert found[4]["value"] == "2"


@pytest.mark.engine
def test_limits_are_those_of_the_options(caisson):
    code = "import os\nprint(os.sysconf('SC_PAGE_SIZE'))\nx = bytearray(300 << 20)"
    ended = caisson("exec", "--python", code, "--memory", "128m", "--json")
    assert ended.object["outcome"] == "oom"
    ended = caisson("exec", "--shell", "sleep 30", "--timeout", "1", "--json")
    assert ended.object["outcome"] == "timeout"
    assert "pass a larger --timeout" in ended.object["hint"]
    assert ended.object["duration_s"] < 4


@pytest.mark.engine
def test_a_mount_is_readable_and_not_writable(caisson, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("from the host\n")
    (tmp_path / "data").chmod(0o755)
    tmp_path.chmod(0o755)
    command = "cat /mnt/data/a.txt; touch /mnt/data/b || echo refused"
    ended = caisson("exec", "--shell", command, "--mount", "data", "--json")
    assert "from the host" in ended.object["output"]
    assert "refused" in ended.object["output"]
    assert not (tmp_path / "data" / "b").exists()


@pytest.mark.engine
def test_output_is_neither_markup_nor_terminal_escapes(caisson):
    command = r"printf '[bold]b[/bold] \033[31mred\033[0m \033]0;title\007end\n'"
    ended = caisson("exec", "--shell", command, FORCE_COLOR="1")
    assert ended.out == "[bold]b[/bold] red end\n"


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_call_shows_what_it_did_and_removes_the_container(begin, number):
    code = "print('begun', flush=True)\nimport os, time; os.system('sleep 77 &'); time.sleep(60)"
    process = begin("exec", "--python", code)
    wait_for(lambda: "sleep 77" in commands_in(containers_of(process.pid)))
    begun = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - begun < 5
    assert out == "begun\n"
    assert "killed" in err
    assert not containers_of(process.pid)


@pytest.mark.engine
def test_a_signal_while_waiting_for_the_next_line_removes_the_container(begin):
    process = begin("exec", "--script", "-")
    process.stdin.write('{"python": "1"}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["value"] == "1"
    assert containers_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert not containers_of(process.pid)
