"""Real workers as processes of their own, real brokers, and jobs of recorded turns."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil
import pytest

from sandbox.engine import Engine
from tests.services import is_alive
from worker import celery_app
from worker.settings import Settings
from worker.store.blobs import Blobs
from worker.store.database import open_store
from worker.submission import Submission, submit

COMMAND = [Path(sys.executable).with_name("caisson")]
PARTS = ("OPENAI_", "CAISSON_")
READY_S = 30.0


def eventually(check, timeout_s=20.0, pause_s=0.05):
    """The first true value of `check`, or a failure."""
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(pause_s)
    return found


def recording(folder, *cells, answer="done"):
    """A recording in which each cell is one call of the interpreter."""

    def turn(number, code):
        function = {"name": "python_interpreter", "arguments": json.dumps({"code": code})}
        call = {"id": f"call{number}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    turns = [turn(number, code) for number, code in enumerate(cells)]
    turns.append({"role": "assistant", "content": answer})
    path = folder / f"recording-{len(list(folder.glob('recording-*')))}.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in turns))
    return path


class Worker:
    """`caisson worker` as a process; what it prints is kept."""

    def __init__(self, environment, *options):
        self.lines = []
        self._said = queue.Queue()
        self.process = subprocess.Popen(
            [*COMMAND, "worker", *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._said.put(self.lines[-1])
        self._said.put(None)

    def said(self, text, timeout_s=READY_S):
        """Wait for a line with that text."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"never said {text!r}: {self.lines}"
            if text in line:
                return line

    @property
    def pid(self):
        return self.process.pid

    @property
    def tree(self):
        """All of its processes."""
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    @property
    def consumer(self):
        """The process that takes messages."""
        return next(
            one
            for one in psutil.Process(self.pid).children()
            if "worker.consumer" in " ".join(one.cmdline())
        )

    @property
    def pool(self):
        return self.consumer.children()

    def kill(self):
        """End its first process as the kernel would; what is left of the others is returned."""
        tree = self.tree
        self.process.kill()
        self.process.wait(10)
        return tree

    def stop(self):
        """End it as its operator would; returns the exit code and how long that took."""
        started = time.monotonic()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30), time.monotonic() - started

    def close(self):
        if self.process.poll() is None:
            tree = self.tree
            self.process.kill()
            self.process.wait(10)
            eventually(lambda: not any(map(is_alive, tree)), 10)
        self.process.stdout.close()


def remove_containers(store):
    """Remove what killed workers have left, which would wait for others for many minutes."""
    with closing(Engine()) as engine:
        for found in engine.labelled(f"caisson.store={store}"):
            engine.remove(found["Id"])


class Place:
    """A data directory with its settings: where jobs are submitted and workers started."""

    def __init__(self, home, stack, **settings):
        self.home = home
        self.files = home / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self._stack = stack
        self.options = {
            "data_dir": str(home),
            "driver": "process",
            "allow_unisolated": "true",
            "lease_s": "3",
            "sweep_s": "0.5",
            **settings,
        }
        self.settings = Settings(**self.options)
        self.store = open_store(self.settings.database)
        stack.callback(self.store.close)
        if self.options["driver"] == "docker":
            stack.callback(remove_containers, self.store.identity)

    @property
    def environment(self):
        own = {
            f"CAISSON_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in self.options.items()
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(PARTS)}
        return {**kept, **own}

    def worker(self, *options, is_ready=True):
        worker = Worker(self.environment, "--concurrency", "2", *options)
        self._stack.callback(worker.close)
        if is_ready:
            worker.said("ready")
        return worker

    def check(self):
        """The exit code of the health check, and what it says."""
        done = subprocess.run(
            [*COMMAND, "worker", "--check"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def submit(self, *cells, answer="done", is_rung=True, **fields):
        path = recording(self.files, *cells, answer=answer)
        what = Submission(goal="do it", replay=path, **fields)
        job_id = submit(what, self.settings, self.store, Blobs(self.home / "blobs"))
        if is_rung:
            with suppress(celery_app.BrokerUnavailable):
                self.ring()
        return job_id

    def ring(self, times=1):
        celery_app.ring(self.settings, times)

    def job(self, job_id):
        return self.store.get(job_id).job

    def is_over(self, job_id):
        return self.job(job_id).status.is_final

    def finished(self, job_id, timeout_s=30.0):
        """The job, once it is over."""
        eventually(lambda: self.is_over(job_id), timeout_s)
        return self.job(job_id)

    def waiting(self, name=celery_app.BELLS):
        with celery_app.connect(self.settings) as connection:
            return celery_app.waiting(connection, name)


@pytest.fixture
def place_with(tmp_path):
    """Makes data directories, and ends all that was started in them."""
    with ExitStack() as stack:
        celery_app._in_force.clear()

        def make(name="home", **settings):
            return Place(tmp_path / name, stack, **settings)

        yield make
        celery_app._in_force.clear()


@pytest.fixture
def place(place_with):
    """A data directory with an embedded broker."""
    return place_with()


@pytest.fixture
def redis_place(place_with, redis_url):
    return place_with(broker_url=redis_url)
