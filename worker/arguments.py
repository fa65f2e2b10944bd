"""Read the arguments of a call as models write them.

Models write JSON with raw newlines in strings, a fence around it, words after it, or code in
triple quotes (see `worker.relaxed`). What can be read without guessing is read, and every mending
is reported. What was cut off is never completed: half a command is another command.
"""

from __future__ import annotations

import re
from typing import Any

from worker.errors import ArgumentsInvalid
from worker.relaxed import Unreadable, read_value

_FENCE = re.compile(r"\s*```[\w-]*[ \t]*\n?")
_FENCE_END = re.compile(r"\s*```")
# Behind a value that ended too early there is the rest of a string, not words or another value.
_AFTER = re.compile(r"""[\s}\]]*(?:\Z|[`{<#*(\[]|\w(?!.*["'`]\s*\}))""", re.DOTALL)
_EXCERPT = 40


def read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Return the arguments, and what had to be mended to read them (None: nothing).

    Raises `ArgumentsInvalid`, with the position, for what cannot be read.
    """
    value, notes = _read(text if text.strip() else "{}")
    if isinstance(value, str):  # JSON in a JSON string
        value, more = _read(value)
        notes = [*notes, "the arguments were a string of JSON, not an object", *more]
    if not isinstance(value, dict):
        raise ArgumentsInvalid(f"the arguments must be a JSON object, not {_kind(value)}")
    try:
        return clean(value), "; ".join(notes) or None
    except RecursionError:
        raise ArgumentsInvalid("the arguments are too deep") from None


def clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Replace halves of surrogate pairs, which no encoder takes, wherever they are."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in value.items()}
    if isinstance(value, list):
        return [clean(v) for v in value]
    return value


def _read(text: str) -> tuple[Any, list[str]]:
    fence = _FENCE.match(text)
    try:
        value, end, mended = read_value(text, fence.end() if fence else 0)
    except Unreadable as error:
        raise ArgumentsInvalid(where(error)) from error
    notes = list(mended)
    if fence:
        notes.append("a code fence around the JSON was dropped")
        closing = _FENCE_END.match(text, end)
        end = closing.end() if closing else end
    rest = text[end:]
    if not _AFTER.match(rest):
        raise ArgumentsInvalid(where(Unreadable("Expecting the end", text, end)))
    if rest.strip():
        notes.append("text after the JSON was dropped")
    return value, notes


def where(error: Unreadable) -> str:
    """Say why JSON cannot be read, and where."""
    text, place = error.text, error.place
    line = text.count("\n", 0, place) + 1
    column = place - text.rfind("\n", 0, place)
    before, after = text[max(0, place - _EXCERPT) : place], text[place : place + _EXCERPT]
    return (
        f"the arguments are not JSON: {error.why} at line {line} column {column}, here: "
        f"{before!r} <HERE> {after!r}"
    )


def _kind(value: object) -> str:
    names = {list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else "text")
