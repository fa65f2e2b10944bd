"""Ctrl-C, SIGTERM and a closed terminal as a flag that the work looks at, not as an exception."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 0.01


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
    """Let SIGTERM and SIGHUP unwind the program as Ctrl-C does, so that sandboxes are removed.

    An interrupt is not lost where Python can raise nothing (in a finalizer, or while a module is
    looked up): it comes again a moment later.
    """
    for number in (*SIGNALS, signal.SIGALRM):
        signal.signal(number, _interrupt)
    sys.unraisablehook = _interrupt_again


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def _interrupt_again(what: sys.UnraisableHookArgs) -> None:
    if issubclass(what.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)  # raised from here, it would be lost again
    else:
        sys.__unraisablehook__(what)
