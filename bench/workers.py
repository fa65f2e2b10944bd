"""Real workers, and jobs for them that are recordings of a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.contest import ROOT
from worker.messages import Job, Status, Wire
from worker.settings import Settings
from worker.store.base import Store
from worker.store.blobs import Blobs
from worker.submission import Submission, submit
from worker.testing import say

WORKER = (sys.executable, "-c", "from worker.cli import main; main()", "worker", "--no-beat")
ANSWER = "42"
END_S = 1200.0


def submit_all(
    settings: Settings, store: Store, number: int, turns: Sequence[Wire] = ()
) -> list[str]:
    """Submit so many jobs, in which the model says `turns` and then answers."""
    settings.home.mkdir(parents=True, exist_ok=True)
    replay = settings.home / "recording.jsonl"
    replay.write_text("".join(f"{json.dumps(turn)}\n" for turn in (*turns, say(ANSWER))))
    blobs = Blobs(settings.home / "blobs")
    what = Submission(goal="answer", replay=replay)
    options = {"memory": settings.memory}
    what = what.model_copy(update={"options": options})
    return [submit(what, settings, store, blobs) for _ in range(number)]


def check(store: Store, jobs: list[str]) -> None:
    for job in jobs:
        found: Job = store.get(job).job
        attempts = store.attempts(job)
        assert (found.status, found.answer) == (Status.SUCCEEDED, ANSWER), found
        assert [attempt.ending for attempt in attempts] == ["finished"], attempts


def wait(is_over: Callable[[], bool]) -> None:
    until = time.monotonic() + END_S
    while not is_over():
        assert time.monotonic() < until
        time.sleep(0.1)


@contextmanager
def running(
    command: list[str], environment: dict[str, str], number: int, ready: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run a command several times, from when all have said that they are ready."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CAISSON_")}
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.NamedTemporaryFile("w+")) for _ in range(number)]
        started = [
            subprocess.Popen(
                [text.replace("%i", str(index)) for text in command],
                cwd=ROOT,
                env={**kept, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            for index, log in enumerate(logs)
        ]
        try:
            wait(lambda: all(ready in Path(log.name).read_text() for log in logs))
            yield started
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                process.wait()
