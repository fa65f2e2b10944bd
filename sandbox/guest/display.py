"""How values look: the text of the last expression, and figures as files."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FIGURES = 20
LINE = 100
MAX_PRETTY = 16_000  # laying out a million elements takes seconds, and few would be kept
SEQUENCE_TYPES = (list, tuple, dict, set, frozenset)


def text(value: object) -> str:
    """Show a value as a notebook does; see `options` for tables and arrays."""
    shown = repr(value)
    if type(value) in SEQUENCE_TYPES and LINE < len(shown) < MAX_PRETTY:
        import pprint  # noqa: PLC0415 - slow to import, and not needed to start

        return pprint.pformat(value, width=LINE, compact=True, sort_dicts=False)
    return shown


def save_figures(workspace: str, numbered_from: int) -> list[str]:
    """Save each open matplotlib figure as a PNG in the workspace, close it, return the names."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    names: list[str] = []
    numbers = pyplot.get_fignums()
    for number in numbers[:MAX_FIGURES]:
        name = _free_name(workspace, numbered_from + len(names) + 1)
        if _save(pyplot, number, os.path.join(workspace, name)):
            names.append(name)
    if len(numbers) > MAX_FIGURES:
        print(f"only {MAX_FIGURES} of {len(numbers)} open figures were saved", file=sys.stderr)
        pyplot.close("all")
    return names


def _save(pyplot: Any, number: int, path: str) -> bool:
    """Save one figure and close it; a figure that cannot be drawn must not fail later calls."""
    try:
        pyplot.figure(number).savefig(path, bbox_inches="tight", dpi=110)
        return True
    except Exception as error:
        print(f"figure {number} was not saved: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    finally:
        pyplot.close(number)


def _free_name(workspace: str, number: int) -> str:
    while os.path.lexists(os.path.join(workspace, f"figure-{number}.png")):
        number += 1
    return f"figure-{number}.png"
