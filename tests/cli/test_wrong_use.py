"""Whatever is asked wrongly is answered with one line that names it, exit code 2, no traceback."""

from __future__ import annotations

import os

import pytest

from worker.settings import Settings

GIB = 1024**3


@pytest.fixture
def refuses(caisson):
    """Run `caisson` and check that it names each of `parts` in one line, and does nothing else."""

    def run(*arguments, says, **env):
        ended = caisson(*arguments, **env)
        assert ended.code == 2, ended
        assert not ended.out
        assert ended.err.startswith("caisson: ")
        assert ended.err.count("\n") == 1, ended.err
        for part in [says] if isinstance(says, str) else says:
            assert str(part) in ended.err
        return ended.err

    return run


@pytest.fixture
def turns(recording):
    return recording("done")


def test_unknown_commands_and_options_are_named(refuses):
    refuses("exex", says=["exex", "exec", "--help"])
    refuses("exec", "--foo", says=["--foo", "caisson exec --help"])
    refuses("run", says=["GOAL", "caisson run --help"])
    refuses("config", says=["caisson config --help"])


@pytest.mark.parametrize("goal", ["", "  \n\t "])
def test_an_empty_goal(refuses, turns, goal):
    refuses("run", goal, "--replay", turns, says="goal")


def test_a_file_that_is_not_there(refuses, turns, tmp_path):
    refuses("run", "x", "--replay", turns, "--file", "nope.csv", says="nope.csv")
    refuses("exec", "--python", "1", "--file", tmp_path / "nope.csv", says="nope.csv")


def test_a_folder_in_place_of_a_file(refuses, turns, tmp_path):
    (tmp_path / "folder").mkdir()
    refuses("run", "x", "--replay", turns, "--file", "folder", says="folder")
    refuses("exec", "--shell", "ls", "--file", "folder", says=["folder", "--mount"])


@pytest.mark.parametrize("option", ["--file", "--mount", "--replay", "--record"])
def test_an_empty_path_is_not_the_current_folder(refuses, option):
    refuses("run", "x", option, "", says=[option, "the path is empty"])


def test_an_empty_path_of_a_script(refuses):
    refuses("exec", "--script", "", says="the path is empty")
    refuses("exec", "--python", "1", "--mount", "", says="the path is empty")


def test_a_file_of_two_gigabytes(refuses, turns, tmp_path):
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(2 * GIB)
    refuses("run", "x", "--replay", turns, "--file", "big.bin", says=["big.bin", "--mount"])
    refuses("exec", "--shell", "ls", "--file", "big.bin", says="big.bin")


def test_a_mount_that_is_not_there(refuses, turns):
    refuses("run", "x", "--replay", turns, "--mount", "nowhere", says="nowhere")
    refuses("exec", "--shell", "ls", "--mount", "nowhere", says="nowhere")


def test_a_recording_that_is_not_there_or_a_folder(refuses, tmp_path):
    refuses("run", "x", "--replay", "nope.jsonl", says="nope.jsonl")
    refuses("run", "x", "--replay", tmp_path, says=tmp_path.name)


def test_a_broken_line_of_a_recording_is_named(refuses, turns):
    with turns.open("a") as file:
        file.write('{"role": "assistant", "content": \n')
    refuses("run", "x", "--replay", turns, says=["recording.jsonl", "line 2"])


def test_an_empty_recording(refuses, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    refuses("run", "x", "--replay", "empty.jsonl", says="empty.jsonl")


def test_a_recording_that_is_neither_a_file_nor_a_pipe_with_a_writer(refuses, turns, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refuses("run", "x", "--replay", "pipe", says="pipe has no replies")
    refuses("run", "x", "--replay", "/dev/zero", says="/dev/zero is neither a file nor a pipe")
    refuses("run", "x", "--replay", turns, "--record", "pipe", says="it is a pipe")


def test_one_file_cannot_be_replayed_and_recorded_at_once(refuses, turns, tmp_path):
    held = turns.read_text()
    (tmp_path / "again.jsonl").hardlink_to(turns)
    for name in (turns, "again.jsonl"):
        refuses("run", "x", "--replay", turns, "--record", name, says="replayed and recorded")
    assert turns.read_text() == held


def test_a_record_file_that_cannot_be_written(refuses, turns):
    refuses("run", "x", "--replay", turns, "--record", "no/such/folder/r.jsonl", says="no/such")


def test_neither_a_model_nor_a_recording(refuses):
    refuses("run", "x", says=["--model", "--replay"])


def test_a_model_and_a_recording(refuses, turns):
    refuses("run", "x", "--model", "m", "--replay", turns, says=["--model", "--replay"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-steps", "-1"),
        ("--max-steps", "0"),
        ("--max-steps", "many"),
        ("--timeout", "-5"),
        ("--timeout", "nan"),
        ("--memory", "5 apples"),
        ("--memory", "-1g"),
        ("--memory", "1m"),
    ],
)
def test_impossible_limits_of_a_job(refuses, turns, option, value):
    refuses("run", "x", "--replay", turns, option, value, says=value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--cpus", "0"),
        ("--cpus", "-2"),
        ("--pids", "1"),
        ("--timeout", "0"),
        ("--timeout", "2000000"),
        ("--memory", "1k"),
    ],
)
def test_impossible_limits_of_a_sandbox(refuses, option, value):
    refuses("exec", "--python", "1", option, value, says=value)


def test_an_unknown_tool_in_the_list(refuses, turns):
    said = refuses("run", "x", "--replay", turns, says="shel", CAISSON_TOOLS="shel,calculate")
    assert "did you mean shell?" in said
    for command in (["config", "show"], ["exec", "--expression", "1"], ["doctor"]):
        refuses(*command, says=["CAISSON_TOOLS", "shell"], CAISSON_TOOLS="shel")


def test_a_data_folder_that_cannot_be(refuses):
    refuses("exec", "--expression", "1", says="/dev/null is not", CAISSON_DATA_DIR="/dev/null/x")


def test_an_unknown_setting_in_the_environment(refuses):
    refuses("config", "show", says=["CAISSON_MEMROY", "CAISSON_MEMORY"], CAISSON_MEMROY="1g")


def test_a_settings_file_that_cannot_be_read(refuses, tmp_path):
    (tmp_path / "caisson.toml").write_text("memory = [1,\n")
    refuses("config", "show", says="caisson.toml")


def test_an_unknown_setting_in_the_file(refuses, tmp_path):
    (tmp_path / "caisson.toml").write_text('memroy = "1g"\n')
    refuses("exec", "--python", "1", says=["memroy", "memory", "caisson.toml"])


def test_no_call_and_two_calls(refuses):
    refuses("exec", says=["--python", "--shell", "--expression", "--script"])
    refuses("exec", "--python", "1", "--shell", "ls", says="exactly one")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested"),
        ("[]", '"python"'),
        ('{"python": "1", "shell": "ls"}', "one of"),
        ('{"python": 1}', "must be text"),
        ('{"shell": "ls", "cwd": "/"}', '"cwd"'),
        ('{"shell": "ls", "timeout": -1}', "timeout"),
        ('{"shell": "ls", "timeout": true}', "timeout"),
        ('{"shell": "ls", "timeout": NaN}', "timeout"),
        ('{"shell": "ls", "timeout": 2000000}', "86,400 at most"),
        ('{"expression": "1", "timeout": 1e999}', "86,400 at most"),
        ('{"python": "1", "timeout": 1' + "0" * 400 + "}", "86,400 at most"),
    ],
)
def test_a_broken_line_of_a_script_is_found_before_anything_runs(refuses, tmp_path, line, says):
    (tmp_path / "script.jsonl").write_text('{"expression": "1"}\n\n' + line + "\n")
    refuses("exec", "--script", "script.jsonl", says=["script.jsonl, line 3", says])


def test_a_script_that_is_not_there_or_not_text(refuses, tmp_path):
    refuses("exec", "--script", "nope.jsonl", says="nope.jsonl")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    refuses("exec", "--script", "bytes", says="bytes")


def test_what_is_wrong_is_said_without_terminal_escapes(refuses):
    said = refuses("exec", "--python", "1", "--file", "\x1b[31mred\n.csv", says="red")
    assert "\x1b" not in said


def test_every_setting_is_shown_with_its_origin(caisson, tmp_path):
    (tmp_path / "caisson.toml").write_text("pids = 99\n")
    ended = caisson("config", "show", "--json", CAISSON_MEMORY="1g", OPENAI_API_KEY="sk-secret")
    rows = {row["name"]: row for row in ended.object}
    assert rows.keys() == Settings.model_fields.keys()
    assert rows["pids"] == {"name": "pids", "value": 99, "origin": "caisson.toml"}
    assert rows["memory"]["origin"] == "CAISSON_MEMORY"
    assert rows["cpus"]["origin"] == "default"
    assert "sk-secret" not in caisson("config", "show", OPENAI_API_KEY="sk-secret").out


def test_a_pipe_is_given_each_setting_on_a_line_of_its_own(caisson):
    lines = caisson("config", "show", COLUMNS="60").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(Settings.model_fields)
    (tools,) = (line for line in lines if line.startswith("tools "))
    assert "search_files, read_output " in tools
