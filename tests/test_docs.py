"""What README and docs say is so: their commands are run, their names looked up."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from sandbox.doctor import PROBES
from worker.cli_options import Exit
from worker.hooks import Observer
from worker.messages import ResultAdded
from worker.runner import JobRequest, run_job
from worker.settings import CONFIG, PREFIX, SECRET_FILES, Settings, load_settings, parse_size

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
OPERATIONS = ROOT / "docs/operations.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?:\]\(|(?:href|src)=\")([^)\"\s]+)")
ROW = re.compile(r"^\| (.+?) \|$", re.MULTILINE)
# Seconds and sizes, in the lines that account for a run (FIGURE finds them when escaped).
ACCOUNT = re.compile(r"\s*[✓✗] |status: ")
FIGURE_PATTERN = r"\d+(?:\.\d+)? (?:ms|s|KiB|MiB)\b"
FIGURE = re.compile(r"\d+(?:\\\.\d+)?\\ (?:ms|s|KiB|MiB)\b")
WITHOUT_ENGINE = re.compile(r"caisson (?:config|--|exec --expression)|-h\b|--help")
# From other settings or from the host, said in words.
WORKED_OUT = {
    *("workspace_size", "tmp_size", "max_life_s", "data_dir", "database_url", "broker_url"),
    *("result_url", "concurrency", "share_memory", "share_cpus", "pool_memory"),
}
DOCTORS_OWN = {"engine", "image", "start", "environment", "removal", "life"}


class Example(NamedTuple):
    """A command of a page and what it is said to print."""

    command: str
    output: str


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page, language):
    return [body for kind, body in FENCE.findall(text_of(page)) if kind == language]


def examples():
    for page in PAGES:
        for block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                needs = () if WITHOUT_ENGINE.search(command) else pytest.mark.engine
                yield pytest.param(
                    Example(command, output), id=f"{page.stem}: {command}", marks=needs
                )


def pattern_of(output):
    """A pattern for an output: … is anything, and the figures of a run are any figures."""
    lines = output.strip("\n").splitlines()
    return re.compile("".join(map(line_pattern, lines)))


def line_pattern(line):
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    pattern = re.escape(line.rstrip()).replace("…", ".*?")
    if ACCOUNT.match(line):
        pattern = FIGURE.sub(lambda _: FIGURE_PATTERN, pattern)
    return pattern + "\n"


@pytest.fixture
def folder(tmp_path):
    """A folder with what the examples use."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "count.jsonl").write_text(blocks(README, "json")[0])
    return tmp_path


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_prints_what_is_said(example, folder):
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("CAISSON_", "OPENAI_"))}
    path = f"{Path(sys.executable).parent}:{mine['PATH']}"
    done = subprocess.run(
        ["bash", "-c", example.command],
        check=False,
        cwd=folder,
        env={**mine, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    printed = "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())
    assert pattern_of(example.output).fullmatch(printed), printed


@pytest.mark.parametrize(
    ("said", "printed", "is_same"),
    [
        ("✓ ok  2 ms · peak 9.8 MiB", "✓ ok  0.3 s · peak 10 MiB", True),
        ("✓ ok  2 ms", "✗ ok  2 ms", False),
        ("limit of 2 s", "limit of 3 s", False),
        ("a …, c", "a b, c", True),
        ("a …, c", "a b, d", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("a.c", "abc", False),
    ],
)
def test_outputs_are_compared_to_the_letter_but_for_figures_and_dots(said, printed, is_same):
    assert bool(pattern_of(said).fullmatch(printed + "\n")) is is_same


class Told(Observer):
    def __init__(self):
        self.texts = []

    def on_event(self, event, history):
        if isinstance(event, ResultAdded):
            self.texts.append(event.result.text)


@pytest.mark.engine
def test_the_feedback_that_is_shown_is_what_a_model_was_told(folder, monkeypatch):
    (shown,) = (block for block in blocks(README, "text") if block.startswith("status:"))
    example, told = ROOT / "examples/recovery", Told()
    monkeypatch.chdir(folder)
    request = JobRequest(
        goal="penguins", files=(example / "penguins.csv",), replay=example / "recording.jsonl"
    )
    run_job(request, load_settings({"max_steps": 5}).settings, observer=told)
    assert any(pattern_of(shown).fullmatch(text + "\n") for text in told.texts), told.texts


def slug(heading):
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    for link in LINK.findall(text_of(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", text_of(target), re.MULTILINE)
            assert anchor in map(slug, headings), link


def rows(page, columns):
    for row in ROW.findall(text_of(page)):
        cells = row.split(" | ")
        if len(cells) == columns and not cells[0].startswith("--"):
            yield cells


def test_the_exit_codes_are_those_of_the_command():
    for page in (README, OPERATIONS):
        codes = [int(cells[0]) for cells in rows(page, 2) if cells[0].isdigit()]
        assert codes == [code.value for code in Exit], page.name


@pytest.mark.parametrize("page", [README, OPERATIONS], ids=lambda page: page.name)
def test_settings_in_tables_have_the_default_that_is_said(page):
    checked = 0
    for name, default, _ in rows(page, 3):
        for setting in re.findall(r"`(\w+)`", name):
            said = Settings.model_fields[setting].get_default(call_default_factory=True)
            if setting in WORKED_OUT:
                assert said is None, setting
            else:
                assert default_text(said) == plain(default), setting
            checked += 1
    assert checked > 10


def plain(cell):
    """A default as a table writes it, as a value."""
    size = re.fullmatch(r"(\d+) (KiB|MiB|GiB)", cell)
    return str(parse_size(size[0])) if size else cell.strip("`")


def default_text(value):
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, tuple):
        return "all seven"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_setting_is_listed():
    listed = {name for cells in rows(OPERATIONS, 3) for name in re.findall(r"`(\w+)`", cells[0])}
    assert set(Settings.model_fields) <= listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_named_exists(page):
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG, "CAISSON_MEMROY"}
    known |= set(SECRET_FILES)
    named = set(re.findall(rf"\b{PREFIX}\w+", text_of(page)))
    assert named <= known


def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_tests_and_checks_that_are_named_exist(page):
    for path, name in re.findall(r"`((?:[\w.]+/)+[\w.]+\.\w+)(?:::(\w+))?`", text_of(page)):
        assert (ROOT / path).exists(), path
        assert not name or name in names_in(ROOT / path), f"{path}::{name}"
    for check in re.findall(r"doctor: `([^`]+)`", text_of(page)):
        assert check in set(PROBES) | DOCTORS_OWN, check


def test_each_line_of_the_changelog_is_short_and_starts_with_what_one_can_do():
    lines = re.findall(r"^- (.+)$", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert lines
    assert [line for line in lines if len(line.split()) > 25 or not line[0].isupper()] == []
