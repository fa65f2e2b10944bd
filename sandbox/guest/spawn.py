"""How a process for untrusted code begins: forked from the supervisor, with nothing of it open."""

from __future__ import annotations

import os
import signal

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, NoReturn

STDERR = 2
NICE = 10  # however many processes user code starts, the supervisor has its turn
DEFAULT_AGAIN = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGPIPE,
)


def spawn(run: Callable[[], object], output_fd: int, cwd: str, keep: tuple[int, ...] = ()) -> int:
    """Fork a child for untrusted code and return its pid.

    A real fork, though it takes a millisecond more than vfork: the parent of a vfork waits until
    the child has become another program, and user code may stop the child before that.

    The child has its own session, /dev/null as input, `output_fd` as output and error, none of
    our descriptors but `keep`, and is the first that the kernel takes when memory runs out.
    """
    pid = os.fork()
    if pid == 0:
        become_child(run, output_fd, cwd, keep)
    return pid


def become_child(
    run: Callable[[], object], output_fd: int, cwd: str, keep: tuple[int, ...]
) -> NoReturn:
    """Do in a forked child what `spawn` promises, and then `run`."""
    try:
        signal.set_wakeup_fd(-1)
        for number in DEFAULT_AGAIN:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(output_fd, 1)  # stdin is /dev/null already, see `main`
        os.dup2(output_fd, 2)
        close_all_but(keep)
        # Else /dev/stdout and /proc/self/* are closed to user code.
        processes.set_dumpable(allowed=True)
        processes.volunteer_for_oom()
        _enter(cwd)
        if os.getppid() == 1:
            os.nice(NICE)
        run()
    except BaseException as error:
        told = f"sandbox: {type(error).__name__}: {error}\n"
        os.write(STDERR, told.encode("utf-8", "replace"))
    finally:
        os._exit(127)


def close_all_but(keep: tuple[int, ...]) -> None:
    """Close all descriptors of this process but the first three and `keep`; opens none for it."""
    first = STDERR + 1
    for fd in sorted(keep):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/")  # user code has closed its own workspace; let it open it again
