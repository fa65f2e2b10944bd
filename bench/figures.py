"""Figures: what a run found, and what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


def p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]


class Figure(NamedTuple):
    """A number, and what it should not exceed; None: it is only told."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    is_floor: bool = False  # the limit is the least that it may be, not the most

    @property
    def is_met(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.is_floor else self.value <= self.limit
