"""The tools that come with Caisson, each made for one workplace."""

from __future__ import annotations

from collections.abc import Iterable

from worker.builtin import calculate, files, interpreter, read_output, search
from worker.builtin.workplace import Workplace
from worker.errors import InputInvalid
from worker.tools import Tool, nearest

__all__ = ["Workplace", "builtin_tools"]


def builtin_tools(place: Workplace, allowed: Iterable[str]) -> list[Tool]:
    """The allowed tools, in the order given. Raises `InputInvalid` for a name that is none."""
    made = (
        interpreter.python_tool(place),
        interpreter.shell_tool(place),
        calculate.calculate_tool(),
        files.read_tool(place),
        files.write_tool(place),
        search.search_tool(place),
        read_output.read_output_tool(place),
    )
    tools = {item.name: item for item in made}
    for name in allowed:
        if name not in tools:
            raise InputInvalid(
                f"unknown tool {name!r} in tools{nearest(name, tools)}; known: {', '.join(tools)}"
            )
    return [tools[name] for name in dict.fromkeys(allowed)]
