"""Check values against the part of JSON Schema that tools need.

Tools that are declared as JSON Schema (in a file, by another server) enter with it. A schema with
a keyword that would not be checked is refused at the door: a rule that is accepted and has no
effect is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from worker.errors import InputInvalid

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_WORDS = {"title", "description", "default", "examples", "$schema"}
_RULES: dict[str, Callable[[Any, Any], str | None]] = {
    "enum": lambda v, rule: None if v in rule else f"must be one of {rule}",
    "const": lambda v, rule: None if v == rule else f"must be {rule!r}",
    "minimum": lambda v, rule: None if v >= rule else f"must be at least {rule}",
    "maximum": lambda v, rule: None if v <= rule else f"must be at most {rule}",
    "minLength": lambda v, rule: None if len(v) >= rule else f"needs at least {rule} characters",
    "maxLength": lambda v, rule: None if len(v) <= rule else f"has more than {rule} characters",
    "minItems": lambda v, rule: None if len(v) >= rule else f"needs at least {rule} items",
    "maxItems": lambda v, rule: None if len(v) <= rule else f"has more than {rule} items",
    "pattern": lambda v, rule: None if re.search(rule, v) else f"does not match {rule}",
}
_KNOWN = _WORDS | _RULES.keys() | {"type", "properties", "required", "items"}
_KNOWN |= {"additionalProperties"}


def check_schema(schema: dict[str, Any], tool: str) -> None:
    """Raise `InputInvalid` for a schema that cannot be enforced whole."""
    unknown = schema.keys() - _KNOWN
    if unknown:
        raise InputInvalid(f"tool {tool}: schema keyword {min(unknown)!r} is not supported")
    if (kinds := set(_listed(schema.get("type", [])))) - _TYPES.keys():
        raise InputInvalid(f"tool {tool}: no such type: {min(kinds - _TYPES.keys())}")
    inner = [*schema.get("properties", {}).values(), schema.get("items")]
    for part in (*inner, schema.get("additionalProperties")):
        if isinstance(part, dict):
            check_schema(part, tool)


def faults(value: Any, schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    """Yield (place, what is wrong) for everything in `value` that the schema does not allow."""
    kinds = _listed(schema.get("type", []))
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        yield place, f"{_short(value)} is not {' or '.join(kinds)}"
        return
    for name, rule in _RULES.items():
        if name in schema and _applies(name, value) and (wrong := rule(value, schema[name])):
            yield place, f"{_short(value)} {wrong}"
    if isinstance(value, dict):
        yield from _object_faults(value, schema, place)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, item in enumerate(value):
            yield from faults(item, schema["items"], f"{place}[{i}]")


def _object_faults(
    value: dict[str, Any], schema: dict[str, Any], place: str
) -> Iterator[tuple[str, str]]:
    known: dict[str, Any] = schema.get("properties", {})
    rest = schema.get("additionalProperties", False)
    for name in schema.get("required", []):
        if name not in value:
            yield _join(place, name), "missing, required"
    for name, item in value.items():
        if name in known:
            yield from faults(item, known[name], _join(place, name))
        elif rest is False:
            yield _join(place, name), "unknown argument"
        elif isinstance(rest, dict):
            yield from faults(item, rest, _join(place, name))


def describe(schema: dict[str, Any]) -> str:
    """Say in one line what arguments are expected, for a model that got them wrong."""
    required = schema.get("required", [])
    parts = []
    for name, part in schema.get("properties", {}).items():
        note = "" if name in required else ", optional"
        parts.append(f'"{name}": {_kind(part)}{note}')
    return "{" + "; ".join(parts) + "}"


def _kind(part: dict[str, Any]) -> str:
    if "enum" in part:
        return "one of " + ", ".join(map(str, part["enum"]))
    if "anyOf" in part:
        return " or ".join(_kind(p) for p in part["anyOf"])
    kind = " or ".join(_listed(part.get("type", "any value")))
    return f"{kind} of {_kind(part['items'])}" if isinstance(part.get("items"), dict) else kind


def _listed(kind: str | list[str]) -> list[str]:
    return [kind] if isinstance(kind, str) else list(kind)


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _applies(rule: str, value: object) -> bool:
    needs: dict[str, tuple[type, ...]] = {
        "minimum": (int, float),
        "maximum": (int, float),
        "minLength": (str,),
        "maxLength": (str,),
        "pattern": (str,),
        "minItems": (list,),
        "maxItems": (list,),
    }
    return isinstance(value, needs.get(rule, (object,)))


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"  # noqa: PLR2004 - a line's worth
