"""The flag of a worker that is to let go of its jobs: one for all processes of its pool.

It is a byte of memory that the pool's processes inherit, not a lock or an event: a process that is
killed while it looks at an event would leave it locked for all others.
"""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_shared = mmap.mmap(-1, 1)
_leaving = threading.Event()  # this process alone
_LEAVE_S = 0.5  # for the result of the task to reach the worker


def begin() -> None:
    """Let all processes of this worker drain. Safe in a signal handler."""
    _shared[0] = 1


def is_draining() -> bool:
    """Whether this process is to let go of its job."""
    return _shared[0] == 1 or _leaving.is_set()


@contextmanager
def heeding_term() -> Iterator[None]:
    """Within, SIGTERM to this process alone lets go of its job; the process ends soon after.

    Celery's own way is to die at once, as if it was killed.
    """

    def heed(number: int, frame: FrameType | None) -> None:
        del number, frame
        _leaving.set()

    before = signal.signal(signal.SIGTERM, heed)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if _leaving.is_set():
            end = threading.Timer(_LEAVE_S, os.kill, (os.getpid(), signal.SIGTERM))
            end.daemon = True
            end.start()
