"""What the guest does when it has said hello: protect this process, and serve."""

from __future__ import annotations

import os
import signal

from . import processes
from .supervisor import Supervisor
from .wire import MAX_PAYLOAD, Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(config: dict[str, Any], opened: tuple[int, int, int | None]) -> None:
    """Serve hosts until the sandbox ends.

    `config` comes from `sandbox.bundle`, and what is `opened` from `greeting`.
    """
    read_fd, write_fd, listener = opened
    processes.set_dumpable(allowed=False)  # closes /proc/1/mem, /proc/1/fd and ptrace to user code
    processes.set_name("caisson-guest")
    processes.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    _silence()
    link = Channel(read_fd, write_fd, max_payload=MAX_PAYLOAD)
    Supervisor(config, link, listener).serve()
    processes.kill_everything()
    os._exit(0)


def _silence() -> None:
    """Take stdin and stdout away from libraries, which may print when they are imported."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
