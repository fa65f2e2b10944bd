"""Attacks that cross a border nobody thought of: another host's way in, long names, odd sockets."""

from __future__ import annotations

import pytest

from sandbox.docker import DockerSandbox
from sandbox.types import SandboxSpec

pytestmark = pytest.mark.engine

# Keeps all processes there are, and knocks at the supervisor's door more often than it opens.
KNOCK = """
import os, socket, time
def take_all():
    try:
        while True:
            if os.fork() == 0:
                time.sleep(1000)
    except OSError:
        pass
kept = []
for _ in range(200):
    take_all()
    knock = socket.socket(socket.AF_UNIX)
    knock.settimeout(1)
    try:
        knock.connect("\\0caisson-guest")
    except OSError:
        pass
    kept.append(knock)
"""


def test_a_later_host_is_let_in_though_user_code_knocked_without_a_process_to_be_had(start, job):
    first = start(spec=SandboxSpec(job=job, linger_s=30))
    first.python(KNOCK, timeout_s=10)
    assert first.shell("echo alive").output == "alive\n"
    second = DockerSandbox.adopt(first.container, SandboxSpec(job=job, generation=2))
    try:
        assert second.python("1 + 1").value == "2"
    finally:
        second.close()


def test_a_listing_of_many_long_names_is_cut_and_harms_nobody(container):
    container.python(
        "import os\n"
        "for _ in range(4):\n"
        "    os.mkdir('a' * 250)\n"
        "    os.chdir('a' * 250)\n"
        "for i in range(10_000):\n"
        "    open(f'{i:05}', 'w').close()\n"
        "os.chdir('/workspace')",
        timeout_s=60,
    )
    assert container.files()
    assert container.python("1 + 1").value == "2"


@pytest.mark.parametrize(
    ("what", "code"),
    [
        # Not part of any network namespace: leads to the machine's hypervisor.
        ("a VM socket", "import socket\nsocket.socket(socket.AF_VSOCK)"),
        # Runs system calls that no filter sees.
        (
            "an I/O ring",
            "import ctypes, os\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "if libc.syscall(425, 4, ctypes.create_string_buffer(512)) < 0:\n"
            "    raise OSError(ctypes.get_errno(), 'refused')",
        ),
    ],
)
def test_what_goes_round_the_network_and_the_filter_is_refused(container, what, code):
    done = container.python(code)
    assert done.error is not None, f"{what} can be had"
