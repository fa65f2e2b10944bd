"""Output that cannot be written: one line and a code of its own, never a traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND

COMMANDS = [
    ("run", "x", "--replay", "recording.jsonl"),
    ("run", "x", "--replay", "recording.jsonl", "--json"),
    ("exec", "--expression", "6 * 7"),
    ("exec", "--expression", "6 * 7", "--json"),
    ("config", "show"),
    ("--help",),
]


@pytest.fixture
def write_to(environment, recording, tmp_path):
    """Run `caisson` with this standard output; returns its exit code and standard error."""
    recording("done")
    unisolated = {"CAISSON_DRIVER": "process", "CAISSON_ALLOW_UNISOLATED": "true"}

    def run(arguments, **streams):
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=tmp_path,
            env={**environment, **unisolated},
            timeout=60,
            check=False,
            text=True,
            **{"stderr": subprocess.PIPE, **streams},
        )
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_disk_is_named_in_one_line(write_to, arguments):
    with Path("/dev/full").open("w") as full:
        code, err = write_to(arguments, stdout=full)
    *others, last = err.splitlines()
    assert code == 5
    assert last == "caisson: cannot write the output: No space left on device"
    assert all(line.startswith("✓ ok") for line in others)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_is_gone_is_no_matter_for_a_message(write_to, arguments):
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    assert reader.wait() == 0
    code, err = write_to(arguments, stdout=reader.stdin)
    reader.stdin.close()
    assert code == (0 if arguments[0] == "run" and "--json" not in arguments else 141)
    assert not err


def test_complaints_that_nobody_can_be_told_keep_their_exit_code(write_to):
    with Path("/dev/full").open("w") as full:
        assert write_to(["exec"], stdout=full, stderr=full)[0] == 2


def test_streams_that_are_closed_from_the_start_are_as_good_as_any():
    command = ["sh", "-c", f"{COMMAND} exec --expression 1 >&- 2>&-"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
