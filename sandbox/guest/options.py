"""Fit libraries for being read by a model, as soon as one is loaded.

Tables and arrays are kept short, and what gets lost is told (`losses`). Not when a value is shown:
code that prints a table has loaded its library in the same call, and what a job has chosen for
itself must stay.
"""

from __future__ import annotations

import sys

from .losses import tell_losses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Callable

PANDAS = {
    "display.max_rows": 20,
    "display.min_rows": 10,
    "display.max_columns": 20,
    "display.max_colwidth": 60,
    "display.width": 200,  # nobody looks through a window: a table that wraps is harder to read
}
NUMPY = {"threshold": 200, "edgeitems": 3, "linewidth": 120}


def watch_imports() -> None:
    """Set the options of what is loaded already, and of the rest when it is."""
    for name, fit in FITTINGS.items():
        module = sys.modules.get(name)
        if module is not None:
            _safely(fit, module)
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds what the finders behind it find, and has the options set after it was loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in FITTINGS:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                    return spec
        return None


class _Loader:
    """Loads as the loader it stands for does, and leaves its place to that one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _safely(FITTINGS[module.__name__], module)


def _fit_pandas(pandas: Any) -> None:
    for name, value in PANDAS.items():
        pandas.set_option(name, value)
    tell_losses(pandas)


def _fit_numpy(numpy: Any) -> None:
    numpy.set_printoptions(**NUMPY)


FITTINGS: dict[str, Callable[[Any], None]] = {
    "pandas": _fit_pandas,
    "numpy": _fit_numpy,
}


def _safely(change: Callable[[Any], None], module: Any) -> None:
    """User code may have put anything under a library's name; that must not fail its call."""
    try:
        change(module)
    except Exception as error:
        print(f"display options of {module} not set: {error}", file=sys.stderr)
