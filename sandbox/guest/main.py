"""Where the guest begins: protect this process, read the configuration, serve."""

from __future__ import annotations

import os
import signal
from typing import Any

from . import processes
from .supervisor import Supervisor
from .wire import Channel


def main(config: dict[str, Any]) -> None:
    """Serve hosts until the sandbox ends; `config` comes from `sandbox.bundle`."""
    processes.set_dumpable(allowed=False)  # closes /proc/1/mem, /proc/1/fd and ptrace to user code
    processes.set_name("caisson-guest")
    processes.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    Supervisor(config, _first_link()).serve()
    processes.kill_everything()
    os._exit(0)


def _first_link() -> Channel:
    """Take stdin and stdout away from libraries, which may print when they are imported."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return Channel(read_fd, write_fd)
