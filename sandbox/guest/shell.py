"""A fresh shell for each call, in the workspace."""

from __future__ import annotations

import os

from . import processes
from .spawn import DEFAULT_AGAIN, NICE

MAX_ARGUMENT = 100_000  # the kernel refuses one argument of more than 128 KiB
SCRIPT_FD = 3


def program() -> str:
    """The shell of this image."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, "bash")
        if os.access(path, os.X_OK):
            return path
    return "/bin/sh"


def start(command: str, output_fd: int) -> int:
    """Start a shell that runs `command`, in a session of its own; returns its pid.

    No Python runs in it, and this process is not copied for it: that would take longer than the
    shell, the more so with large libraries loaded. It has our folder, our system-call filter, and
    of our descriptors none but `output_fd`, as its output and error.
    """
    shell = program()
    name = shell.rpartition("/")[2].encode()
    encoded = command.encode("utf-8", "replace")
    actions = [(os.POSIX_SPAWN_DUP2, output_fd, 1), (os.POSIX_SPAWN_DUP2, output_fd, 2)]
    arguments = [name, b"-c", encoded]
    script = -1
    is_first = os.getpid() == 1
    try:
        if is_first:
            # Inherited, since a shell that has begun children cannot be given it in time. Were
            # memory to run out in this very millisecond, the largest process would go: files can
            # take half of the memory at most, so whoever fills the rest is larger than this one.
            processes.volunteer_for_oom()
        if len(encoded) > MAX_ARGUMENT:
            script = _written(encoded)
            actions.append((os.POSIX_SPAWN_DUP2, script, SCRIPT_FD))
            arguments = [name, b"/proc/self/fd/%d" % SCRIPT_FD]
        pid = os.posix_spawn(
            shell,
            arguments,
            os.environ,
            file_actions=actions,
            setsid=True,
            setsigdef=DEFAULT_AGAIN,
        )
    finally:
        if is_first:
            processes.volunteer_for_oom(0)
        if script >= 0:
            os.close(script)
    if is_first:
        processes.put_behind(pid, NICE)
    return pid


def _written(script: bytes) -> int:
    """Write a long command to a file in memory, which is gone with the last who has it open."""
    fd = os.memfd_create("script")
    view = memoryview(script)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
