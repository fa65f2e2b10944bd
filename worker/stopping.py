"""Ctrl-C, SIGTERM and a closed terminal as a flag that the work looks at, not as an exception."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stoppable() -> Iterator[Event]:
    """Within, the first signal sets the flag; the second raises `KeyboardInterrupt` at once."""
    flag = Event()

    def heed(number: int, frame: FrameType | None) -> None:
        del number, frame
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = {number: signal.signal(number, heed) for number in SIGNALS}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt_on_signals() -> None:
    """Let SIGTERM and SIGHUP unwind the program as Ctrl-C does, so that sandboxes are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, interrupt)
