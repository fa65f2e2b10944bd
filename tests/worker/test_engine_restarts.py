"""An engine that is killed under a job, comes back or not; it is one of these tests' own.

It has a network namespace of its own, because a second engine without a bridge removes the first
one's.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sandbox.errors import EngineUnavailable
from sandbox.types import SandboxSpec
from tests.worker.test_station import LEASE_S, STEPS, Forgetful, Yard, python
from worker.admission import PREFERRED_S
from worker.messages import ResultStatus, Status
from worker.store.memory import MemoryStore

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(240),
    # docker-py leaves the socket of a connection that fails to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PR_SET_PDEATHSIG = 1
AWAY_S = 2.0
LONG_S = 8.0  # the engine is back before that
OUTLASTING_S = 30.0  # one that comes back plain ends its containers, which may take it ten


def needs(program):
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _end_with_us():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class PrivateEngine:
    """A dockerd with data, socket and network of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.url = f"unix://{folder}/docker.sock"
        self.process = None

    def start(self, *options):
        for stale in ("pid", "exec/containerd/containerd.pid"):  # of a zombie, perhaps
            (self.folder / stale).unlink(missing_ok=True)
        parts = {
            **self._identity(),
            "--data-root": self.folder / "data",
            "--exec-root": self.folder / "exec",
            "--pidfile": self.folder / "pid",
            "--host": self.url,
        }
        given = [f"{name}={value}" for name, value in parts.items()]
        off = ["--bridge=none", "--iptables=false", "--ip6tables=false"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [needs("unshare"), "--net", "--", needs("dockerd"), *given, *off, *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_us,  # noqa: PLW1509 - one system call, no locks
            )
        deadline = time.monotonic() + 60
        while self.docker("version", check=False).returncode:
            assert time.monotonic() < deadline
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.2)

    def _identity(self):
        """Before Docker 23 the engines of a host share their id, unless they are told not to."""
        said = subprocess.check_output([needs("dockerd"), "--version"], text=True)
        if int(re.search(r"version (\d+)", said)[1]) >= 23:
            return {}
        file = self.folder / "daemon.json"
        file.write_text(json.dumps({"deprecated-key-path": str(self.folder / "key.json")}))
        return {"--config-file": file}

    def docker(self, *arguments, check=True, **options):
        command = ["docker", "--host", self.url, *arguments]
        return subprocess.run(command, capture_output=True, check=check, **options)

    def load(self, image):
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            self.docker("load", stdin=saving.stdout)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def clean(self):
        """End what a killed engine has left, and unmount it."""
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in part for part in process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", mount], check=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """An engine that has the image, which takes it a while."""
    if os.geteuid() or not needs("dockerd") or not needs("unshare"):
        pytest.skip("an engine of one's own needs root and dockerd")
    engine = PrivateEngine(tmp_path_factory.mktemp("engine", numbered=True))
    engine.start()
    try:
        engine.load(SandboxSpec().image)
        yield engine
    finally:
        engine.process.kill()
        engine.process.wait()
        engine.clean()


@pytest.fixture
def private(loaded):
    """An engine that does not run yet, nor any more after the test."""
    loaded.stop()
    yield loaded
    loaded.stop()


@pytest.mark.parametrize("options", [(), ("--live-restore",)], ids=["plain", "live-restore"])
def test_a_job_goes_on_when_its_engine_is_killed_and_started_again(
    private, tmp_path, monkeypatch, job, options
):
    monkeypatch.setenv("DOCKER_HOST", private.url)
    private.start(*options)
    yard = Yard(tmp_path, MemoryStore(), job)
    long_s = LONG_S if options else OUTLASTING_S
    second = python(f"import time; time.sleep({long_s})\nx += 1\nopen('log', 'a').write('b')")
    job_id = yard.submit(STEPS[0], second, *STEPS[2:], number=len(options) + 100)
    statuses = []
    working = threading.Thread(
        target=lambda: statuses.append(yard.station("one").work_next().status)
    )
    working.start()
    yard.until_called(job_id, 2)
    time.sleep(0.5)
    private.kill()
    time.sleep(AWAY_S)
    private.start(*options)
    working.join(90)
    assert statuses == [Status.SUCCEEDED]
    second = [e.result.status for e in yard.store.events(job_id) if e.kind == "result"][1]
    if options:
        assert (yard.log(job_id), second) == ("abc2", ResultStatus.OK)
    else:
        assert (yard.log(job_id), second) == ("ac?", ResultStatus.UNKNOWN)
        told = next(e.text for e in yard.store.events(job_id) if e.kind == "notice")
        assert "The sandbox was lost" in told
    assert not private.docker("ps", "--all", "--quiet").stdout


class Yards(Yard):
    """Workers on the private engine and on the ordinary one, and a store whose time can be set."""

    def __init__(self, home, job, private, monkeypatch):
        self.skipped_s = 0.0
        super().__init__(home, Forgetful(clock=lambda: time.time() + self.skipped_s), job)
        self.urls = {"private": private.url, "ordinary": os.environ.get("DOCKER_HOST")}
        self.monkeypatch = monkeypatch

    def on(self, engine, name):
        """A worker on that engine; what runs at the same time must be on the same."""
        url = self.urls[engine]
        if url:
            self.monkeypatch.setenv("DOCKER_HOST", url)
        else:
            self.monkeypatch.delenv("DOCKER_HOST")
        return self.station(name)

    def lose_a_worker(self, job_id):
        """Let a worker on the private engine begin the second call of a job, and be lost in it."""
        statuses = []
        station = self.on("private", "lost")
        working = threading.Thread(target=lambda: statuses.append(station.work_next().status))
        working.start()
        self.until_called(job_id, 2)
        self.store.is_away = True
        working.join(LEASE_S + 5)
        self.store.is_away = False
        assert statuses == [Status.RUNNING]
        time.sleep(LEASE_S)
        assert not self.store.get(job_id).is_held


@pytest.fixture
def yards(private, tmp_path, monkeypatch, job):
    private.start()
    return Yards(tmp_path, job, private, monkeypatch)


def test_a_job_whose_engine_is_gone_for_good_goes_on_with_its_files_on_another(private, yards):
    job_id = yards.submit(*STEPS)
    yards.lose_a_worker(job_id)
    first = yards.on("private", "same").engine_id()
    private.kill()
    with pytest.raises(EngineUnavailable):
        yards.on("private", "same").work_next()
    two = yards.on("ordinary", "two")
    assert two.work_next() is None  # the other engine may come back
    yards.skipped_s += PREFERRED_S
    assert two.work_next().status is Status.SUCCEEDED
    events, found = yards.store.events(job_id), yards.store.get(job_id)
    assert [e.engine for e in events if e.kind == "opened"] == [first, two.engine_id()]
    assert first != two.engine_id() == found.engine
    assert found.job.answer == "the end"
    results = [e.result.status for e in events if e.kind == "result"]
    assert results == [ResultStatus.OK, ResultStatus.UNKNOWN, ResultStatus.OK]
    assert yards.log(job_id) == "ac?"
    (told,) = [e.text for e in events if e.kind == "notice"]
    assert "except the input files, log, which were restored" in told
    assert [a.ending for a in yards.store.attempts(job_id)] == ["lost", "finished"]
    private.start()
    yards.on("private", "back").reap()
    assert not private.docker("ps", "--all", "--quiet").stdout


def test_a_job_is_left_to_the_workers_on_the_engine_that_has_its_variables(private, yards):
    job_id = yards.submit(*STEPS)
    yards.lose_a_worker(job_id)
    near = yards.on("private", "near")
    yards.store.see(near.seen())
    far = yards.on("ordinary", "far")
    yards.store.see(far.seen())
    yards.skipped_s += PREFERRED_S - 30
    assert far.work_next() is None
    assert yards.on("private", "near").work_next().status is Status.SUCCEEDED
    assert yards.log(job_id) == "abc2"
    assert yards.store.get(job_id).engine == near.engine_id()
