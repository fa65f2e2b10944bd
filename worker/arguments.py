"""Read the arguments of a call as models write them.

Models write JSON with raw newlines in strings, a fence around it, words after it, or code in
triple quotes. What can be read without guessing is read, and every mending is reported. What was
cut off is never completed: half a command is another command.
"""

from __future__ import annotations

import json
import re
from typing import Any

import json_repair

from worker.errors import ArgumentsInvalid

_FENCE = re.compile(r"\A\s*```[\w-]*[ \t]*\n?(?P<body>.*?)\n?[ \t]*```", re.DOTALL)
_TRIPLE = re.compile(r'(?<=[:\[,])\s*("""|\'\'\')(?P<body>.*?)\1(?=\s*[,}\]])', re.DOTALL)
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_EXCERPT = 40


def read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Return the arguments, and what had to be mended to read them (None: nothing).

    Raises `ArgumentsInvalid`, with the position, for what cannot be read.
    """
    value, repaired = _read(text if text.strip() else "{}")
    if isinstance(value, str):  # JSON in a JSON string
        value, _ = _read(value)
        repaired = "the arguments were a string of JSON, not an object"
    if not isinstance(value, dict):
        raise ArgumentsInvalid(f"the arguments must be a JSON object, not {_kind(value)}")
    return clean(value), repaired


def clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Replace halves of surrogate pairs, which no encoder takes, wherever they are."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in value.items()}
    if isinstance(value, list):
        return [clean(v) for v in value]
    return value


def _read(text: str) -> tuple[Any, str | None]:
    try:
        return json.loads(text), None
    except json.JSONDecodeError as error:
        return _mend(text, error)
    except (RecursionError, ValueError) as error:  # depth; a number of thousands of digits
        raise ArgumentsInvalid(f"the arguments cannot be read: {error}") from error


def _mend(text: str, error: json.JSONDecodeError) -> tuple[Any, str]:
    notes = []
    fence = _FENCE.match(text)
    body = fence["body"] if fence else text
    if fence:
        notes.append("a code fence around the JSON was dropped")
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(body.lstrip())
    except json.JSONDecodeError:
        return _repair(body.strip(), error)
    if body.lstrip()[end:].strip():
        notes.append("text after the JSON was dropped")
    return value, "; ".join(notes) or "raw control characters in strings were escaped"


def _repair(body: str, error: json.JSONDecodeError) -> tuple[Any, str]:
    tripled = _TRIPLE.sub(lambda m: json.dumps(m["body"]), body)
    if not _is_whole(tripled):
        raise ArgumentsInvalid(_where(error)) from error
    try:
        return json.loads(tripled, strict=False), "triple-quoted strings were escaped"
    except json.JSONDecodeError:
        value = json_repair.loads(tripled)
    if not isinstance(value, dict) or not value or _is_invented(value, tripled):
        raise ArgumentsInvalid(_where(error)) from error
    return value, f"the JSON was not valid ({error.msg}, {_position(error)})"


def _is_invented(value: dict[str, Any], body: str) -> bool:
    """The repair filled in an empty value where there was none."""
    return any(not v and isinstance(v, str) for v in value.values()) and not re.search(
        r"""''|"\"""", body
    )


def _is_whole(body: str) -> bool:
    """Nothing was cut off: the object is closed, and so is every string in it."""
    unquoted = _STRINGS.sub("", body)
    return (
        body.startswith("{")
        and body.endswith("}")
        and '"' not in unquoted
        and unquoted.count("{") == unquoted.count("}")
    )


def _where(error: json.JSONDecodeError) -> str:
    start = max(0, error.pos - _EXCERPT)
    before, after = error.doc[start : error.pos], error.doc[error.pos : error.pos + _EXCERPT]
    return (
        f"the arguments are not JSON: {error.msg} at {_position(error)}, here: "
        f"{before!r} <HERE> {after!r}"
    )


def _position(error: json.JSONDecodeError) -> str:
    return f"line {error.lineno} column {error.colno}"


def _kind(value: object) -> str:
    names = {list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else "text")
