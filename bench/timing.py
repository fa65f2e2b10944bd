"""What things took: medians and 95th percentiles of samples, by name, and what they may be."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple


def p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]


class Target(NamedTuple):
    """A number to reach, and the number of this run."""

    name: str
    limit: float
    value: float
    unit: str = ""
    is_floor: bool = False  # the limit is the least that it may be, not the most

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.is_floor else self.value <= self.limit


class Times:
    """Seconds that things took, by name."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._taken.setdefault(name, []).append(time.perf_counter() - start)

    def names(self) -> list[str]:
        return list(self._taken)

    def count(self, name: str) -> int:
        return len(self._taken[name])

    def median(self, name: str) -> float:
        return statistics.median(self._taken[name])

    def p95(self, name: str) -> float:
        return p95(self._taken[name])
