"""Who keeps a sandbox: processes told apart from each other, and hosts from hosts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sandbox.owner import is_owner_alive, owner

HOST = owner().split(":")[0]
SAY_AND_STAY = "from sandbox.owner import owner\nprint(owner(), flush=True)\ninput()"


@pytest.fixture
def other():
    """Another process of ours, and what it calls itself."""
    command = [sys.executable, "-c", SAY_AND_STAY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def test_this_process_lives():
    assert is_owner_alive(owner()) is True
    assert owner() == owner()
    assert owner().split(":")[1] == str(os.getpid())


def test_another_process_of_this_host_is_seen_to_end(other):
    process, name = other
    assert name.split(":")[0] == HOST
    assert is_owner_alive(name) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_owner_alive(name) is False  # a zombie by now
    process.wait()
    assert is_owner_alive(name) is False


def test_a_later_process_with_the_same_pid_is_another():
    host, pid, start = owner().split(":")
    assert is_owner_alive(f"{host}:{pid}:{float(start) - 1:.2f}") is False


@pytest.mark.parametrize(
    "stranger",
    ["", "host:123", "elsewhere-{host}:{pid}:1", "{host}:x:1", "{host}:1", "a:b:c:d"],
)
def test_of_others_nothing_is_known(stranger):
    assert is_owner_alive(stranger.format(host=HOST, pid=os.getpid())) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a namespace")
def test_a_process_in_another_pid_namespace_is_of_another_host():
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", SAY_AND_STAY]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, check=True)
    name = done.stdout.strip()
    assert name.split(":")[1] == "1"
    assert is_owner_alive(name) is None
