"""An engine that is killed under a job, with and without live-restore: one of this test's own.

It has a network namespace of its own, because a second engine without a bridge removes the first
one's.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sandbox.types import SandboxSpec
from tests.worker.test_station import STEPS, Yard
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
        (self.folder / "pid").unlink(missing_ok=True)
        parts = {
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
def private(tmp_path_factory):
    if os.geteuid() or not needs("dockerd") or not needs("unshare"):
        pytest.skip("an engine of one's own needs root and dockerd")
    engine = PrivateEngine(tmp_path_factory.mktemp("engine", numbered=True))
    engine.start()
    try:
        engine.load(SandboxSpec().image)
        engine.stop()
        yield engine
    finally:
        engine.process.kill()
        engine.process.wait()
        engine.clean()


@pytest.mark.parametrize("options", [(), ("--live-restore",)], ids=["plain", "live-restore"])
def test_a_job_goes_on_when_its_engine_is_killed_and_started_again(
    private, tmp_path, monkeypatch, job, options
):
    monkeypatch.setenv("DOCKER_HOST", private.url)
    private.start(*options)
    yard = Yard(tmp_path, MemoryStore(), job)
    job_id = yard.submit(*STEPS, number=len(options) + 100)
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
    working.join(60)
    assert statuses == [Status.SUCCEEDED]
    second = [e.result.status for e in yard.store.events(job_id) if e.kind == "result"][1]
    if options:
        assert (yard.log(job_id), second) == ("abc2", ResultStatus.OK)
    else:
        assert (yard.log(job_id), second) == ("ac?", ResultStatus.UNKNOWN)
        told = next(e.text for e in yard.store.events(job_id) if e.kind == "notice")
        assert "The sandbox was lost" in told
    assert not private.docker("ps", "--all", "--quiet").stdout
    private.stop()
