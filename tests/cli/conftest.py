"""The real command, run as a person or a program would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.engine import Engine

COMMAND = Path(sys.executable).with_name("caisson")
PARTS = ("OPENAI_", "CAISSON_", "NO_COLOR", "FORCE_COLOR", "COLUMNS")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def object(self):
        """The one JSON object on stdout."""
        return json.loads(self.out)


def containers_of(pid):
    """The containers that a running command has made, and that are still there."""
    engine = Engine()
    try:
        made = engine.labelled("caisson.owner")
        return [one for one in made if one["Labels"]["caisson.owner"].split(":")[1:2] == [str(pid)]]
    finally:
        engine.close()


def commands_in(containers):
    """The command lines that run in these containers."""
    engine = Engine()
    try:
        tables = [engine._client.top(one["Id"]) for one in containers if one["State"] == "running"]
        return [row[-1] for table in tables for row in table["Processes"]]
    finally:
        engine.close()


def wait_for(check, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def environment():
    """An environment without settings of whoever runs the tests."""
    return {k: v for k, v in os.environ.items() if not k.startswith(PARTS)}


@pytest.fixture(scope="session")
def pids(why_no_engine):
    """The processes that were started; in the end no container of theirs may be left."""
    seen = []
    yield seen
    if not why_no_engine:
        assert [left for pid in seen for left in containers_of(pid)] == []


@pytest.fixture
def begin(environment, tmp_path, pids):
    """Start `caisson` in an empty folder, without waiting for it."""
    started = []

    def start(*arguments, **env):
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        pids.append(process.pid)
        return process

    yield start
    for process in started:
        process.terminate()  # not killed: it has a container to remove
        process.wait(20)
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):  # what was never read
                stream.close()


@pytest.fixture
def caisson(begin):
    """Run `caisson` to its end: `caisson("exec", "--shell", "ls", CAISSON_PIDS="32")`."""

    def run(*arguments, stdin="", timeout_s=60, **env):
        process = begin(*arguments, **env)
        out, err = process.communicate(stdin, timeout=timeout_s)
        return Ended(process.returncode, out, err)

    return run


@pytest.fixture
def recording(tmp_path):
    """Write a recording: a text is a turn without calls, a dict {tool: arguments} one call."""

    def write(*turns, name="recording.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(_message(turn)) + "\n" for turn in turns))
        return path

    return write


def _message(turn):
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(turn.items())
        if name != "say"
    ]
    return {"role": "assistant", "content": turn.get("say", ""), "tool_calls": calls}
