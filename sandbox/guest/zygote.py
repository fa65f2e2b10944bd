"""The process in which libraries are loaded, and from which kernels are forked then.

Were they loaded in the supervisor, each of its forks would copy the tables of a large address
space, for a shell that throws them away again.

A kernel is forked twice over, and so becomes a child of the supervisor's: one whose pid the
supervisor hears of is its own to collect, and nothing else of the forking is left. User code is of
the same user and may stop or end this process; its memory, descriptors, limits and rank are closed
to it, as the supervisor's are. So what it says holds. It is waited for only a moment; without it
the supervisor forks a kernel by itself, and the libraries take their time again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

from . import processes, syscalls, wire
from .interpreter import preload
from .spawn import become_child, close_all_but
from .wire import Frame, Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, NoReturn

    BeKernel = Callable[[int, int], None]

ANSWER_S = 1.0  # to a request that takes some milliseconds, on a machine that is busy
MAX_MESSAGE = 128 * 1024
CARRIED = 3  # descriptors that come with a request: a kernel's output, requests and answers
POLL_S = 0.0002


class Zygote:
    """The process as the supervisor sees it; raises OSError if it cannot be had."""

    def __init__(self, be_kernel: BeKernel, workspace: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.closing(theirs):
            self.pid = os.fork()
            if self.pid == 0:
                _serve(theirs, be_kernel, workspace)
        self._socket = ours
        self._socket.settimeout(0)
        self.process = processes.inspect(self.pid)
        self.threads = 1
        if os.getpid() == 1:
            self._protect()

    def _protect(self) -> None:
        try:
            syscalls.protect(self.pid)
        except OSError:
            self.end()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def load(self, names: list[str]) -> None:
        """Have libraries loaded; `hear` has the answer when there is something to read."""
        self._socket.send(wire.encode({"kind": "load", "names": names}))

    def hear(self) -> list[str] | None:
        """Which libraries could not be loaded, and why; None if it is gone."""
        said = self._receive()
        if said is None or said["kind"] != "loaded":
            return None
        self.threads = processes.count_threads(self.pid)
        return wire.texts(said, "failed")

    def fork(self, fds: list[int]) -> int | None:
        """Have a kernel forked and return its pid; None if nobody answers in time.

        Raises OSError if there is no room for another process.
        """
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        try:
            socket.send_fds(self._socket, [wire.encode({"kind": "fork"})], fds)
        except OSError:
            return None
        said = self._receive() if waiting.poll(ANSWER_S * 1000) else None
        if said is None:
            return None
        if said["kind"] != "forked":
            raise OSError(said.get("errno"), "a kernel cannot be forked")
        self.threads = processes.count_threads(self.pid)  # some libraries end theirs over a fork
        return int(wire.number(said, "pid", 2, 2**31))

    def _receive(self) -> Frame | None:
        try:
            return wire.decode(self._socket.recv(MAX_MESSAGE))
        except (OSError, Malformed):
            return None

    def end(self) -> None:
        """End it, and forget it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._socket.close()


def _serve(stream: socket.socket, be_kernel: BeKernel, workspace: str) -> NoReturn:
    """Do what is asked for until the supervisor is gone; the process's main function."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_all_but((stream.fileno(),))
        stream.settimeout(None)
        processes.set_name("caisson-zygote")
        if os.getppid() == 1:
            syscalls.protect(os.getpid())
        while True:
            flags = socket.MSG_CMSG_CLOEXEC
            said, fds, _, _ = socket.recv_fds(stream, MAX_MESSAGE, CARRIED, flags)
            if not said:
                break
            if fds:
                _fork(stream, fds, be_kernel, workspace)
            else:
                failed = preload(wire.texts(wire.decode(said), "names"))
                stream.send(wire.encode({"kind": "loaded", "failed": failed}))
    finally:
        os._exit(0)


def _fork(stream: socket.socket, fds: list[int], be_kernel: BeKernel, workspace: str) -> None:
    """Fork a child that forks the kernel and ends."""
    try:
        pid = os.fork()
    except OSError as error:
        _complain(stream, error)
    else:
        if pid == 0:
            _fork_again(stream, fds, be_kernel, workspace)
        os.waitpid(pid, 0)
    for fd in fds:
        os.close(fd)


def _fork_again(
    stream: socket.socket, fds: list[int], be_kernel: BeKernel, workspace: str
) -> NoReturn:
    output_fd, *pipes = fds
    middle, deadline = os.getpid(), time.monotonic() + ANSWER_S
    try:
        if os.fork() == 0:
            while _is_there(middle):  # as a parent, or as one more that counts as a process
                if time.monotonic() > deadline:
                    os._exit(0)
                time.sleep(POLL_S)
            stream.send(wire.encode({"kind": "forked", "pid": os.getpid()}))
            become_child(lambda: be_kernel(*pipes), output_fd, workspace, tuple(pipes))
    except OSError as error:
        _complain(stream, error)
    finally:
        os._exit(0)


def _is_there(pid: int) -> bool:
    """Whether a process lives, or has ended and nobody has collected it yet."""
    try:
        os.kill(pid, 0)
    except OSError:  # another user's has its number by now
        return False
    return True


def _complain(stream: socket.socket, error: OSError) -> None:
    stream.send(wire.encode({"kind": "failed", "errno": error.errno}))
