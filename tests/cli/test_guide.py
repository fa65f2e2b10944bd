"""The sessions of docs/jobs.md, run from the first to the last in one shell, with a real worker."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/jobs.md"
SESSION = re.compile(r"^```shellsession\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
# What is another in every run: ids, times of day, spans and sizes, the width of a column.
TOKEN = re.compile(
    rf"(?P<id>{ID.pattern})"
    r"|(?P<clock>\d\d:\d\d:\d\d)"
    r"|(?P<figure>\d+(?:\.\d+)? (?:ms|s|min|KiB)\b)"
    r"|(?P<any>…)"
    r"|(?P<gap> {2,})"
    r"|(?P<rule>─{3,})"
)
ANY = {
    "clock": r"\d\d:\d\d:\d\d",
    "figure": r"\d+(?:\.\d+)? (?:ms|s|min(?: \d\d s)?|KiB)",
    "any": ".*?",
    "gap": " +",
    "rule": "─+",
}


class Shell:
    """One bash for all commands; what each prints, on both streams, is returned."""

    def __init__(self, folder):
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("CAISSON_", "OPENAI_"))}
        path = f"{Path(sys.executable).parent}:{mine['PATH']}"
        self.process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**mine, "PATH": path, "XDG_DATA_HOME": str(folder / "share")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command):
        mark = secrets.token_hex(8)
        self.process.stdin.write(f"{command}\necho {mark}\n")
        self.process.stdin.flush()
        lines = iter(self.process.stdout.readline, f"{mark}\n")
        return "".join(line.rstrip() + "\n" for line in lines)

    def close(self):
        self.run("kill $(jobs -p); wait")
        self.process.communicate(timeout=20)


def commands():
    for block in SESSION.findall(GUIDE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


class Page:
    """What the guide says, and what its ids are in this run."""

    def __init__(self):
        self.ids = {}
        self._named = set()

    def meant(self, command):
        """A command of the guide with this run's ids, or ends of ids."""
        for said, real in self.ids.items():
            command = command.replace(said, real).replace(said[-6:], real[-6:])
        return command

    def is_so(self, said, printed):
        """Whether the guide is right; from then on its new ids are known."""
        new = set(ID.findall(said)) - self.ids.keys()
        found = re.fullmatch("".join(self._line(line) for line in said.splitlines()), printed)
        if found:
            self.ids.update({name: found[self._group(name)] for name in new})
        return bool(found)

    def _line(self, line):
        if line.strip() == "…":
            return r"(?:.*\n)*?"
        pattern, end = "", 0
        for token in TOKEN.finditer(line):
            kind = token.lastgroup
            is_id = kind == "id"
            pattern += re.escape(line[end : token.start()])
            pattern += self._id(token[0]) if is_id else ANY[kind]
            end = token.end()
        return pattern + re.escape(line[end:]) + "\n"

    def _id(self, said):
        if said in self.ids:
            return self.ids[said]
        if said in self._named:
            return f"(?P={self._group(said)})"
        self._named.add(said)
        return f"(?P<{self._group(said)}>{ID.pattern})"

    @staticmethod
    def _group(said):
        return f"id_{said.replace('-', '_')}"


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.mark.timeout(300)  # a dozen commands, on a machine that may be busy
@pytest.mark.engine
def test_the_guide_is_right_from_its_first_session_to_its_last(shell):
    page, checked = Page(), 0
    for command, said in commands():
        printed = shell.run(page.meant(command))
        assert page.is_so(said, printed), f"$ {command}\n{printed}"
        checked += 1
    assert checked >= 9


@pytest.mark.parametrize(
    ("said", "printed", "is_so"),
    [
        ("job 20261130-012810-5cea25 3 s", "job 20270101-000000-aaaaaa 12 s", True),
        ("job 20261130-012810-5cea25", "job 20270101-000000", False),
        ("a  b", "a      b", True),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a (b)", "a [b]", False),
        ("3 steps", "4 steps", False),
    ],
)
def test_sessions_are_compared_to_the_letter_but_for_what_no_run_repeats(said, printed, is_so):
    assert Page().is_so(said, printed + "\n") is is_so


def test_an_id_is_the_same_all_through_the_page():
    page = Page()
    one, two = "20261130-012810-5cea25", "20270101-000000-aaaaaa"
    assert page.is_so(f"{one} {one}", f"{two} {two}\n")
    assert page.meant("caisson show 5cea25") == "caisson show aaaaaa"
    assert not page.is_so(one, f"{one}\n")
