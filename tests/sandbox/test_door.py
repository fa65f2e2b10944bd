"""The short way into a sandbox: shut before user code, not missed where it is not, swept up."""

from __future__ import annotations

import io
import os
import resource
import socket
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from sandbox import opening
from sandbox.docker import DockerSandbox
from sandbox.door import OLD_S, Door, pool_socket, private_folder, sweep
from sandbox.hardening import DOOR
from sandbox.link import SocketLink
from sandbox.types import Outcome, SandboxSpec
from worker.settings import Settings
from worker.spares import kept

pytestmark = pytest.mark.engine

KNOCK = f"""
import os, socket, stat
assert stat.S_ISSOCK(os.stat({DOOR!r}).st_mode)
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    try:
        socket.socket(socket.AF_UNIX, kind).connect({DOOR!r})
    except OSError as error:
        print(type(error).__name__)
"""


class Blind(Door):
    """As an engine that does not see this host's files finds it."""

    @classmethod
    def open(cls):
        door = super().open()
        door.path.unlink()
        return door


class Deaf(Door):
    """As a runtime that lets no unix socket through shows it to the guest."""

    @classmethod
    def open(cls):
        door = super().open()
        door.path.unlink()
        door.path.touch()
        return door


@pytest.fixture
def start(job):
    def started():
        return DockerSandbox.start(SandboxSpec(job=job))

    return started


def is_direct(sandbox):
    link = sandbox._session.link
    assert isinstance(link, SocketLink)
    return not link.is_framed


def exchange(sandbox):
    """A file of more than one part there and back, and a call."""
    content = bytes(range(256)) * 20_000
    assert sandbox.write_file("a", io.BytesIO(content)) == len(content)
    got = io.BytesIO()
    assert sandbox.read_file("a", got) == len(content)
    assert got.getvalue() == content
    return sandbox.python("1 + 1").value


def test_calls_and_files_go_past_the_engine(start):
    with closing(start()) as sandbox:
        assert is_direct(sandbox)
        assert exchange(sandbox) == "2"


def test_nobody_else_gets_in(start):
    with closing(start()) as sandbox:
        assert sandbox.python(KNOCK).output.split() == ["PermissionError"] * 3
        refused = sandbox.shell(f"rm {DOOR}; mv {DOOR} /tmp/x; chmod 666 {DOOR}; echo x > {DOOR}")
        assert refused.outcome is Outcome.ERROR
        assert sandbox.python(KNOCK).output.split() == ["PermissionError"] * 3


def test_no_socket_is_left_on_the_host(start, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="t-") as folder:  # short, as a socket's path must be
        monkeypatch.setattr("tempfile.tempdir", folder)
        with closing(start()) as sandbox:
            assert is_direct(sandbox)
            assert not list(private_folder().iterdir())


@pytest.mark.parametrize("kind", [Blind, Deaf])
def test_where_there_is_no_way_through_the_engine_carries_everything(start, monkeypatch, kind):
    monkeypatch.setattr(opening, "Door", kind)
    monkeypatch.setattr(opening, "without_doors", set())
    with closing(start()) as sandbox:
        assert not is_direct(sandbox)
        assert exchange(sandbox) == "2"
    assert bool(opening.without_doors) is (kind is Blind)


def test_a_folder_that_others_could_enter_is_not_used(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        first = Door.open()
        first.close()
        first.path.parent.chmod(0o755)
        assert Door.open() is None


def test_where_no_descriptor_is_to_be_had_there_is_no_door():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as lowest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), hard))
        try:
            assert Door.open() is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def left_behind(path, age_s=0.0):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path.name


def test_sockets_that_killed_processes_left_are_swept_and_no_others(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="t-") as folder, socket.socket(socket.AF_UNIX) as live:
        monkeypatch.setattr("tempfile.tempdir", folder)
        gone, elsewhere = dead_pid(), dead_pid()
        left_behind(pool_socket(gone))
        left_behind(private_folder() / "old.sock", OLD_S + 60)
        live.bind(str(pool_socket(elsewhere)))  # as of a process whose pid is not seen from here
        live.listen(1)
        others = {
            left_behind(pool_socket(os.getpid()), 2 * OLD_S),
            left_behind(private_folder() / "new.sock", OLD_S - 60),
            left_behind(private_folder() / "pool-x", 2 * OLD_S),
            pool_socket(elsewhere).name,
        }
        sweep()
        assert {path.name for path in private_folder().iterdir()} == others


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_worker_sweeps_before_it_lends(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        left_behind(pool_socket(dead_pid()))
        with kept(Settings(driver="docker"), SandboxSpec(), 1, lambda: False):
            assert list(private_folder().glob("pool-*")) == [pool_socket(os.getpid())]
