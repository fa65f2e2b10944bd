"""How values look: the text of the last expression, and figures as files."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MAX_FIGURES = 20
LINE = 100
MAX_PRETTY = 16_000  # laying out a million elements takes seconds, and few would be kept
SEQUENCE_TYPES = (list, tuple, dict, set, frozenset)

PANDAS_OPTIONS = {
    "display.max_rows": 20,
    "display.min_rows": 10,
    "display.max_columns": 20,
    "display.max_colwidth": 60,
    "display.width": 120,
}
NUMPY_OPTIONS = {"threshold": 200, "edgeitems": 3, "linewidth": 120}


def text(value: object) -> str:
    """Show a value as a notebook does; tables and arrays are kept short by their own options."""
    _shorten_libraries()
    shown = repr(value)
    if type(value) in SEQUENCE_TYPES and LINE < len(shown) < MAX_PRETTY:
        import pprint  # noqa: PLC0415 - slow to import, and not needed to start

        return pprint.pformat(value, width=LINE, compact=True, sort_dicts=False)
    return shown


_shortened: set[str] = set()


def _shorten_libraries() -> None:
    for name, shorten in SHORTENERS.items():
        module = sys.modules.get(name)
        if module is not None and name not in _shortened:
            _shortened.add(name)
            _safely(shorten, module)


def _shorten_pandas(pandas: Any) -> None:
    for name, value in PANDAS_OPTIONS.items():
        pandas.set_option(name, value)


def _shorten_numpy(numpy: Any) -> None:
    numpy.set_printoptions(**NUMPY_OPTIONS)


SHORTENERS: dict[str, Callable[[Any], None]] = {
    "pandas": _shorten_pandas,
    "numpy": _shorten_numpy,
}


def _safely(change: Callable[[Any], None], module: Any) -> None:
    """User code may have put anything under a library's name; that must not fail its call."""
    try:
        change(module)
    except Exception as error:
        print(f"display options of {module} not set: {error}", file=sys.stderr)


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
