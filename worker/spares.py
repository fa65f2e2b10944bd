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
from worker.sizes import said_bytes

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
    if not room(settings, slots):
        yield
        return
    pool = Pool(memory_bytes=_memory(settings, slots))
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


def room(settings: Settings, slots: int) -> int:
    """How many spares a worker with so many slots may keep."""
    return _memory(settings, slots) // SPARE_BYTES if settings.driver == "docker" else 0


def said(settings: Settings, slots: int) -> str:
    """Say how many a worker may keep, or why it keeps none."""
    if most := room(settings, slots):
        sandboxes = "sandbox" if most == 1 else "sandboxes"
        size = said_bytes(most * SPARE_BYTES)
        return f"up to {most} {sandboxes} ({size}), ready before they are asked for"
    if settings.driver != "docker":
        return f"none (driver {settings.driver})"
    if settings.pool_memory == 0:
        return "none (pool_memory = 0)"
    have, need = said_bytes(_memory(settings, slots)), said_bytes(SPARE_BYTES)
    return f"none (pool_memory is {have}, one takes {need})"


def _memory(settings: Settings, slots: int) -> int:
    if settings.pool_memory is not None:
        return settings.pool_memory
    return min((slots + 1) * SPARE_BYTES, psutil.virtual_memory().total // _MOST_SHARE)
