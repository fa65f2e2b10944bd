"""The command is there at once, and loads only what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from importlib.metadata import version

import pytest

HEAVY = "celery kombu docker openai RestrictedPython pydantic rich requests httpx httpx2"


def loaded_by(statement):
    code = f"{statement}\nimport sys; print(*sorted(set({HEAVY.split()}) & set(sys.modules)))"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


def test_help_comes_within_300_milliseconds(caisson):
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        ended = caisson("--help")
        took.append(time.perf_counter() - begun)
    assert ended.code == 0
    assert "Exit codes" in ended.out
    assert min(took) < 0.3


def test_help_loads_nothing_heavy():
    assert loaded_by("import worker.cli_app") == []


def test_no_command_loads_the_queue_and_running_a_recording_no_model_client():
    found = loaded_by("import worker.cli_app, worker.cli_exec, worker.trace, worker.runner")
    assert not {"celery", "kombu", "openai"} & set(found)


# Interrupts this process when it comes to import a module, as Ctrl-C would at that moment.
INTERRUPTED = """
import os, signal, sys

def press():
    os.kill(os.getpid(), signal.SIGINT)

class Now:
    def __del__(self):
        press()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            {moment}

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
from worker.cli import main
main()
"""


def interrupted(module, command, tmp_path, environment, moment="press()"):
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(moment=moment), module, *command],
        cwd=tmp_path,
        env={**environment, "CAISSON_DATA_DIR": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("worker.cli_app", ["--help"]),
        ("typer", ["--version"]),
        ("worker.cli_jobs", ["submit", "x"]),
        ("pydantic", ["config", "show"]),
        ("sqlalchemy", ["jobs"]),
        ("rich.console", ["show", "x"]),
    ],
)
def test_an_interrupt_during_an_import_is_exit_code_130_and_no_traceback(
    module, command, tmp_path, environment
):
    ended = interrupted(module, command, tmp_path, environment)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.strip() in {"", "caisson: cancelled"}


def test_an_interrupt_where_nothing_can_be_raised_is_not_lost(tmp_path, environment):
    """In a finalizer Python would print the traceback and go on."""
    moment = "Now(); import time; time.sleep(0.2)"
    ended = interrupted("pydantic", ["config", "show"], tmp_path, environment, moment)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.strip() in {"", "caisson: cancelled"}


def test_an_interrupt_after_the_command_has_ended_is_no_traceback(tmp_path, environment):
    code = (
        "import atexit, os, signal, sys; "
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT)); "
        "sys.argv = ['caisson', '--version']; from worker.cli import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130
    assert ended.stdout.startswith("caisson ")
    assert ended.stderr == "caisson: cancelled\n"


def test_the_version_and_the_commands_are_told(caisson):
    assert caisson("--version").out == f"caisson {version('caisson')}\n"
    alone = caisson()
    assert alone.code == 0
    assert not re.search(r"\w\.\.\.$", alone.out, re.MULTILINE)  # no summary is cut
    for command in ("run", "exec", "doctor", "config"):
        assert f"\n  {command} " in alone.out
        assert caisson(command, "--help").code == 0
