"""Tries of a model's endpoint that came to nothing, told to whoever watches while they happen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAYS = "worker.delays"  # the log in which a model tells of them


class _Ear(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def delays_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Within, `tell` gets a line for each try after which another one is waited for."""
    log, ear = logging.getLogger(DELAYS), _Ear(tell)
    log.addHandler(ear)
    try:
        yield
    finally:
        log.removeHandler(ear)
