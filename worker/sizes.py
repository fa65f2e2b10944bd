"""Sizes as people write them."""

from __future__ import annotations


def said_bytes(size: int) -> str:
    """A size as people write it."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1000:  # noqa: PLR2004 - the next unit
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"  # noqa: PLR2004


def exact_bytes(size: int) -> str:
    """A size without rounding, in the largest unit that divides it."""
    for unit, power in (("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {unit}"
    return f"{size} B"
