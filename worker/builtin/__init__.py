"""The tools that come with Caisson, each made for one workplace."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sandbox.base import Sandbox
from worker.builtin import calculate, files, interpreter, read_output, search
from worker.builtin.workplace import Workplace
from worker.errors import InputInvalid
from worker.tools import Tool, nearest

__all__ = ["Workplace", "builtin_tools", "prepare"]

_MAKERS: dict[str, Callable[[Workplace], Tool]] = {
    "python_interpreter": interpreter.python_tool,
    "shell": interpreter.shell_tool,
    "calculate": lambda _place: calculate.calculate_tool(),  # it needs no sandbox
    "read_file": files.read_tool,
    "write_file": files.write_tool,
    "search_files": search.search_tool,
    "read_output": read_output.read_output_tool,
}


def prepare() -> None:
    """Look at all tools once, for all processes that are forked from this one."""
    builtin_tools(Workplace(_no_sandbox), _MAKERS)


def _no_sandbox() -> Sandbox:
    raise AssertionError("nothing is called here")


def builtin_tools(place: Workplace, allowed: Iterable[str]) -> list[Tool]:
    """The allowed tools, in the order given. Raises `InputInvalid` for a name that is none."""
    for name in allowed:
        if name not in _MAKERS:
            near = nearest(name, _MAKERS)
            raise InputInvalid(f"unknown tool {name!r} in tools{near}; known: {', '.join(_MAKERS)}")
    return [_MAKERS[name](place) for name in dict.fromkeys(allowed)]
