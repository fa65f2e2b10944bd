"""Calls written as Python, `tool("text", name=3)`: one or several, or a list of them.

Some models are trained to call so, and others do it on their own. Nothing of it is run: it is
parsed, and an argument must be a literal. A text that has anything else in it is none.
"""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

_MOST_CHARS = 100_000
_BEGINS = re.compile(r"\[?\s*[A-Za-z_][\w.]*\(")


class PythonCall(NamedTuple):
    """A call by its parts; `places` are the arguments without a name."""

    name: str
    places: tuple[Any, ...]
    named: dict[str, Any]


def read_pythonic(text: str) -> list[PythonCall]:
    """The calls that a text is; none when it is something else."""
    if not _BEGINS.match(text) or len(text) > _MOST_CHARS:
        return []
    try:
        body = ast.parse(text).body
        found = [node for statement in body for node in _expressions(statement)]
        return [_call(node) for node in found]
    # no Python, no literal, nested too deeply, a null character
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _expressions(statement: ast.stmt) -> list[ast.expr]:
    if not isinstance(statement, ast.Expr):
        raise ValueError("no expression")  # noqa: TRY004 - of the text, not of a type
    return statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]


def _call(node: ast.expr) -> PythonCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError("no call")  # noqa: TRY004
    if any(word.arg is None for word in node.keywords):
        raise ValueError("arguments that are unpacked")
    places = tuple(ast.literal_eval(argument) for argument in node.args)
    named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    return PythonCall(ast.unparse(node.func), places, named)
