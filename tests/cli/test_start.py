"""The command is there at once, and loads only what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from importlib.metadata import version

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
    assert loaded_by("import worker.cli") == []


def test_no_command_loads_the_queue_and_running_a_recording_no_model_client():
    found = loaded_by("import worker.cli, worker.cli_exec, worker.trace, worker.runner")
    assert not {"celery", "kombu", "openai"} & set(found)


def test_the_version_and_the_commands_are_told(caisson):
    assert caisson("--version").out == f"caisson {version('caisson')}\n"
    alone = caisson()
    assert alone.code == 0
    assert not re.search(r"\w\.\.\.$", alone.out, re.MULTILINE)  # no summary is cut
    for command in ("run", "exec", "doctor", "config"):
        assert f"\n  {command} " in alone.out
        assert caisson(command, "--help").code == 0
