"""The examples: what they answer is what really running them gives, and a changed file shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "examples"
COMMAND = Path(sys.executable).with_name("caisson")
EXAMPLES = ("analysis", "operations", "recovery")
GUTTER = "  │ "
# Clock times, decimals, and whole numbers of two digits or more, without their sign.
NUMBER = re.compile(r"(?<![\w.])(?:\d\d:\d\d:\d\d|\d+\.\d+|\d{2,})(?![\d:]|\.\d)")


def numbers(text):
    return set(NUMBER.findall(text))


def turns(name):
    lines = (ROOT / name / "recording.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def data_files(folder):
    ours = {"goal.txt", "recording.jsonl", "README.md", "produce.py"}
    return sorted(path for path in folder.iterdir() if path.name not in ours)


def run(folder, tmp_path):
    """Run an example with the real command; returns its exit code and what it printed."""
    files = [option for path in data_files(folder) for option in ("--file", path)]
    goal = (folder / "goal.txt").read_text()
    replay = folder / "recording.jsonl"
    ended = subprocess.run(
        [COMMAND, "run", goal, *files, "--replay", replay],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return ended.returncode, ended.stdout


def shown_by_tools(printed):
    """The results that the tools really gave, without the code and what the model said."""
    lines = printed.splitlines()
    return "\n".join(line.removeprefix(GUTTER) for line in lines if line.startswith(GUTTER))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Each example is run once: `ended(name)` gives its exit code, output and folder."""
    cache = {}

    def once(name):
        if name not in cache:
            place = tmp_path_factory.mktemp(name)
            cache[name] = (*run(ROOT / name, place), place)
        return cache[name]

    return once


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_recording_holds_only_what_the_model_said(name):
    for turn in turns(name):
        assert turn["role"] == "assistant"
        assert set(turn) <= {"role", "content", "tool_calls"}
        for call in turn.get("tool_calls", []):
            assert set(call) == {"id", "type", "function"}
            assert set(call["function"]) == {"name", "arguments"}
            assert isinstance(call["function"]["arguments"], str)
    assert "tool_calls" not in turns(name)[-1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_data_is_small_and_says_where_it_is_from(name):
    readme = (ROOT / name / "README.md").read_text()
    assert "licence" in readme.lower()
    for path in data_files(ROOT / name):
        assert f"`{path.name}`" in readme
        assert path.stat().st_size < 300_000


@pytest.mark.engine
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_number_of_the_answer_comes_from_a_tool(name, ended):
    code, printed, _ = ended(name)
    answer = turns(name)[-1]["content"]
    assert code == 0, printed
    assert answer.strip() in printed
    known = numbers(shown_by_tools(printed)) | numbers((ROOT / name / "goal.txt").read_text())
    assert numbers(answer)
    assert numbers(answer) - known == set()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("analysis", {"co2_growth.png", "growth_by_decade.csv"}),
        ("operations", {"incident.png", "waves.csv"}),
        ("recovery", {"figure-1.png"}),
    ],
)
def test_plots_and_tables_lie_in_the_folder_that_is_named(name, files, ended):
    _, printed, _ = ended(name)
    folder = Path(re.search(r"^files in (.+)$", printed, re.MULTILINE)[1])
    assert {path.name for path in folder.iterdir()} >= files
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 20_000


@pytest.mark.engine
def test_the_operations_example_uses_shell_and_python_together(ended):
    _, printed, _ = ended("operations")
    assert printed.count("▸ shell") == 3
    assert printed.count("▸ python_interpreter") == 3
    assert "✗" not in printed.replace("✗ 0", "")


@pytest.mark.engine
@pytest.mark.parametrize(
    "told",
    [
        "closest: python_interpreter",
        "arguments are not JSON",
        "script: unknown argument",
        "closest: bill_length_mm",
        "time limit of 3 s",
        "same call 2 times",
        "this exact call gave the same result 3 times",
    ],
)
def test_the_recovery_example_is_led_back_by_feedback(told, ended):
    _, printed, _ = ended("recovery")
    assert told in printed


def thin_out_penguins(folder):
    path = folder / "penguins.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *rows[::2]]) + "\n")


def cut_the_log(folder):
    path = folder / "access.log"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:900]))


def warm_the_air(folder):
    path = folder / "co2.csv"
    head, *rows = path.read_text().splitlines()
    fields = [row.split(",") for row in rows]
    raised = [
        f"{date},{float(value) + number / 100 if value else ''}"
        for number, (date, value) in enumerate(fields)
    ]
    path.write_text("\n".join([head, *raised]) + "\n")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "change"),
    [("analysis", warm_the_air), ("operations", cut_the_log), ("recovery", thin_out_penguins)],
)
def test_a_changed_file_changes_the_results_and_not_the_recorded_answer(
    name, change, ended, tmp_path
):
    folder = tmp_path / name
    shutil.copytree(ROOT / name, folder)
    change(folder)
    code, printed = run(folder, tmp_path)
    answer = turns(name)[-1]["content"]
    assert code == 0, printed
    assert answer.strip() in printed
    assert shown_by_tools(printed) != shown_by_tools(ended(name)[1])
    assert numbers(answer) - numbers(shown_by_tools(printed)), "the old answer would still be true"
