"""Where the guest begins: protect this process, read the configuration, serve."""

from __future__ import annotations

import os
import signal
import socket

from . import processes
from .supervisor import Supervisor
from .wire import MAX_PAYLOAD, Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(config: dict[str, Any]) -> None:
    """Serve hosts until the sandbox ends; `config` comes from `sandbox.bundle`."""
    processes.set_dumpable(allowed=False)  # closes /proc/1/mem, /proc/1/fd and ptrace to user code
    processes.set_name("caisson-guest")
    processes.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    Supervisor(config, _first_link(config["door"])).serve()
    processes.kill_everything()
    os._exit(0)


def _first_link(door: str | None) -> Channel:
    """Take stdin and stdout away from libraries, which may print when they are imported.

    They are the first link, unless the host has opened a door.
    """
    read_fd, write_fd = _enter(door) or (os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return Channel(read_fd, write_fd, max_payload=MAX_PAYLOAD)


def _enter(door: str | None) -> tuple[int, int] | None:
    """Connect to the host's socket; None where there is none, or nobody is let through."""
    if door is None:
        return None
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(door)
    except OSError:
        stream.close()
        return None
    fd = stream.detach()
    return fd, fd
