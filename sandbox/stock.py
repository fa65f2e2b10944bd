"""How many spare sandboxes are wanted of each kind: the pool's arithmetic, without its threads.

A spare fits a spec if the two differ in nothing that a container is made from (`shape_of`). As many
of each shape are wanted as were asked for within the last seconds, at least `LEAST` of one that is
expected, and none of those that nobody has asked for lately. Times are `time.monotonic()` values.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from sandbox.types import MIB, Limits, SandboxSpec

LEAST = 2  # so that one is there while libraries are loaded into the other
SPARE_S = 1800.0  # it ends by itself after this, and is replaced after half of it
DEMAND_S = 10.0
IDLE_S = 60.0  # a shape that nobody has asked for so long needs no more than its least
FORGET_S = 300.0
MOST_LOSSES = 2  # in a row, of spares into which libraries were loaded
LEAST_MEMORY = 256 * MIB  # smaller sandboxes have no room for libraries that nobody asked for


class Waiting(Protocol):
    """A sandbox that waits for its job."""

    @property
    def is_quiet(self) -> bool: ...


T = TypeVar("T", bound=Waiting)


def shape_of(spec: SandboxSpec) -> SandboxSpec | None:
    """What a container for `spec` is made from, without what is its job's alone.

    None: no spare fits, because mounts are the host's own files, chosen for one job.
    """
    if spec.mounts:
        return None
    usual = Limits()
    hosts_own = {"timeout_s": usual.timeout_s, "read_bytes": usual.read_bytes}
    jobs_own = {"job": "spare", "owner": "", "generation": 0, "preload": ()}
    limits = spec.limits.model_copy(update=hosts_own)
    return spec.model_copy(update={**jobs_own, "limits": limits, "spare_s": SPARE_S})


@dataclass(eq=False)
class Idle(Generic[T]):
    """One spare."""

    sandbox: T
    since: float
    is_loaded: bool = False

    def is_good(self, now: float) -> bool:
        return now - self.since < SPARE_S / 2 and self.sandbox.is_quiet


@dataclass(eq=False)
class Stock(Generic[T]):
    """The spares of one shape, and when such were asked for."""

    shape: SandboxSpec
    is_expected: bool = False
    ready: deque[Idle[T]] = field(default_factory=deque)
    asked_at: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    image: str = ""  # what the shape's image was when it was last looked at
    losses: int = 0  # in a row, while libraries were loaded

    def wanted(self, now: float) -> int:
        least = LEAST if self.is_expected else 0
        lately = sum(1 for at in self.asked_at if now - at < DEMAND_S)
        return max(least, lately, 1 if self._idle_s(now) < FORGET_S else 0)

    def sort_out(self, now: float) -> list[Idle[T]]:
        """Take away those that are broken or old, and those that nobody will ask for."""
        good = [waiting for waiting in self.ready if waiting.is_good(now)]
        kept = good[: self.wanted(now)] if self._idle_s(now) > IDLE_S else good
        bad = [waiting for waiting in self.ready if waiting not in kept]
        self.ready = deque(kept)
        return bad

    def best(self, now: float) -> Idle[T] | None:
        """Take a good one, with its libraries if there is any such."""
        for waiting in sorted(self.ready, key=lambda one: not one.is_loaded):
            if waiting.is_good(now):
                self.ready.remove(waiting)
                return waiting
        return None

    def _idle_s(self, now: float) -> float:
        return now - self.asked_at[-1] if self.asked_at else float("inf")

    def can_load(self) -> bool:
        """Whether libraries can be loaded here, as far as is known."""
        return self.shape.limits.memory_bytes >= LEAST_MEMORY and self.losses < MOST_LOSSES
