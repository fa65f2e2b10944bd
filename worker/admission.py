"""What fits where: a worker takes a job only when its engine's share has room for the sandbox.

What a job reserves is its sandbox's limits, not what it uses at the moment: a sandbox may come to
use them at any time. The share is of the host on which this runs, which must be the engine's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

import psutil

from worker.messages import Order, Record
from worker.sizes import said_bytes

PREFERRED_S = 60.0  # for so long a job is left to the engine on which its sandbox lives
PATIENCE_S = 300.0  # a job that has waited so long is not passed over any more, if it can ever fit
_SHARE = 0.75  # of the host's memory; the rest is for the engine, the workers and everything else
_CPUS_EACH = 2.0  # sandboxes seldom compute all at once
_ANY = 2**62  # no job needs so much
_ROUNDED = 1e-6  # CPUs: three tenths are not quite 0.3


class Offer(Protocol):
    """What a worker may give to sandboxes on its engine (`worker.store.base.WorkerSeen`)."""

    @property
    def host(self) -> str: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def cpus(self) -> float | None: ...
    @property
    def free_bytes(self) -> int | None: ...


class Reserved(Record):
    """What the sandboxes of the jobs that are held on one engine may come to use."""

    memory_bytes: int = 0
    cpus: float = 0.0


def reserved(orders: Iterable[Order]) -> Reserved:
    orders = tuple(orders)
    return Reserved(
        memory_bytes=sum(order.memory_bytes for order in orders),
        cpus=sum(order.cpus for order in orders),
    )


def lacking(order: Order, held: Reserved, worker: Offer) -> str:
    """Say what a job needs and the engine of `worker` cannot give now; empty: it fits."""
    need, free = order.memory_bytes, worker.free_bytes
    if worker.memory_bytes is not None and held.memory_bytes + need > worker.memory_bytes:
        return _said_memory(need, held.memory_bytes, worker.memory_bytes, worker.host)
    if free is not None and need > free:
        return f"{said_bytes(need)} of memory; {worker.host} has {said_bytes(free)} left"
    if worker.cpus is not None and held.cpus + order.cpus > worker.cpus + _ROUNDED:
        return _said_cpus(order.cpus, held.cpus, worker.cpus, worker.host)
    return ""


def can_ever_fit(order: Order, worker: Offer) -> bool:
    """Whether the engine of `worker` could do with the job if it had nothing else to do."""
    is_small = worker.memory_bytes is None or order.memory_bytes <= worker.memory_bytes
    return is_small and (worker.cpus is None or order.cpus <= worker.cpus + _ROUNDED)


def room(held: Reserved, worker: Offer) -> Reserved:
    """The most that a job may need now, for a database to compare with: `lacking` in numbers."""
    share = None if worker.memory_bytes is None else worker.memory_bytes - held.memory_bytes
    memory = min((left for left in (share, worker.free_bytes) if left is not None), default=_ANY)
    cpus = _ANY if worker.cpus is None else worker.cpus - held.cpus + _ROUNDED
    return Reserved(memory_bytes=min(memory, _ANY), cpus=cpus)


def _said_memory(need: int, held: int, share: int, host: str) -> str:
    if need > share:
        return f"{said_bytes(need)} of memory; all that {host} may give is {said_bytes(share)}"
    taken = f"{said_bytes(held)} of {said_bytes(share)} are taken"
    return f"{said_bytes(need)} of memory on {host}, where {taken}"


def _said_cpus(need: float, held: float, share: float, host: str) -> str:
    if need > share + _ROUNDED:
        return f"{need:g} CPUs; all that {host} may give is {share:g}"
    return f"{need:g} CPUs on {host}, where {held:g} of {share:g} are taken"


def share_of_memory() -> int:
    """How much of this host's memory sandboxes may reserve, in bytes."""
    return int(psutil.virtual_memory().total * _SHARE)


def share_of_cpus() -> float:
    """How many CPUs sandboxes may reserve."""
    return (os.cpu_count() or 1) * _CPUS_EACH


def free_memory() -> int:
    """Memory that can be had at this moment, in bytes."""
    return int(psutil.virtual_memory().available)
