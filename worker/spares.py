"""The spare sandboxes of a worker: made by its keeper, taken by the processes that do jobs.

One pool for all of them rather than one each: a spare waits for whoever is next, so that a worker
with eight slots needs two or three and not eight, and what its processes take costs one exchange
more, a fraction of a millisecond.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from sandbox.door import private_folder
from sandbox.lending import Borrower, Lender
from sandbox.pool import SPARE_BYTES, Pool
from sandbox.types import SandboxSpec
from worker.settings import Settings

_log = logging.getLogger(__name__)
_MOST_SHARE = 8  # of the host's memory at most the eighth part
_keepers: list[int] = []


@contextmanager
def kept(settings: Settings, spec: SandboxSpec, slots: int, keeper: int) -> Iterator[None]:
    """Keep spares for jobs like `spec`, for the processes of the worker of this keeper (a pid)."""
    memory_bytes = _memory(settings, slots)
    if settings.driver != "docker" or memory_bytes < SPARE_BYTES:
        yield
        return
    with ExitStack() as stack:
        try:
            pool = stack.enter_context(Pool(memory_bytes=memory_bytes))
            stack.enter_context(Lender(pool, _path(keeper)))
        except OSError as error:
            _log.warning("no spare sandboxes are kept: %s", error)
        else:
            pool.expect(spec)
        yield


def belong_to(keeper: int) -> None:
    """Say whose spares this process takes; processes forked from it inherit that."""
    _keepers[:] = [keeper]


def borrower() -> Borrower | None:
    """Where this process takes spares; None if it is no worker's."""
    try:
        return Borrower(_path(_keepers[0])) if _keepers else None
    except OSError:  # no folder, so no keeper has one either
        return None


def _memory(settings: Settings, slots: int) -> int:
    if settings.pool_memory is not None:
        return settings.pool_memory
    return min((slots + 1) * SPARE_BYTES, psutil.virtual_memory().total // _MOST_SHARE)


def _path(keeper: int) -> Path:
    return private_folder() / f"pool-{keeper}"
