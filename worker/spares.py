"""The spare sandboxes of a worker: made by its keeper, taken by the processes that do jobs.

One pool for all of them rather than one each: a spare waits for whoever is next, so that a worker
with eight slots needs two or three and not eight, and what its processes take costs one exchange
more, a fraction of a millisecond.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from sandbox.door import pool_socket, sweep
from sandbox.lending import Borrower, Lender
from sandbox.pool import SPARE_BYTES, Pool
from sandbox.types import SandboxSpec
from worker.settings import Settings

_log = logging.getLogger(__name__)
_MOST_SHARE = 8  # of the host's memory at most the eighth part
_keepers: list[int] = []


@contextmanager
def kept(
    settings: Settings, spec: SandboxSpec, slots: int, is_hurried: Callable[[], bool]
) -> Iterator[None]:
    """Keep spares for jobs like `spec`, for the processes that this one, a keeper, starts.

    If it `is_hurried` in the end, they are left to end by themselves.
    """
    memory_bytes = _memory(settings, slots)
    if settings.driver != "docker" or memory_bytes < SPARE_BYTES:
        yield
        return
    pool = Pool(memory_bytes=memory_bytes)
    try:
        sweep()
        lender = Lender(pool, pool_socket(os.getpid()))
    except OSError as error:
        _log.warning("no spare sandboxes are kept: %s", error)
        yield
        return
    pool.expect(spec)
    pool.open()
    try:
        with lender:
            yield
    finally:
        if not is_hurried():
            pool.close()


def belong_to(keeper: int) -> None:
    """Say whose spares this process takes; processes forked from it inherit that."""
    _keepers[:] = [keeper]


def borrower() -> Borrower | None:
    """Where this process takes spares; None if it is no worker's."""
    try:
        return Borrower(pool_socket(_keepers[0])) if _keepers else None
    except OSError:  # no folder, so no keeper has one either
        return None


def _memory(settings: Settings, slots: int) -> int:
    if settings.pool_memory is not None:
        return settings.pool_memory
    return min((slots + 1) * SPARE_BYTES, psutil.virtual_memory().total // _MOST_SHARE)
