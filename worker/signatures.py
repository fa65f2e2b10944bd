"""What a tool takes, in a few words: for a model that got it wrong, or that is told in text."""

from __future__ import annotations

from typing import Any

from worker.messages import Wire


def describe(schema: Wire) -> str:
    """Say in one line what arguments are expected, for a model that got them wrong."""
    required = schema.get("required", [])
    parts = []
    for name, part in schema.get("properties", {}).items():
        note = "" if name in required else ", optional"
        parts.append(f'"{name}": {kind(part)}{note}')
    return "{" + "; ".join(parts) + "}"


def kind(part: Any) -> str:  # noqa: ANN401 - a schema, which may also be true or false
    """What a value must be, in a few words."""
    if not isinstance(part, dict):
        return "any value"
    if "enum" in part:
        return "one of " + ", ".join(map(str, part["enum"]))
    if isinstance(part.get("anyOf"), list):
        return " or ".join(kind(p) for p in part["anyOf"])
    given = part.get("type", "any value")
    name = given if isinstance(given, str) else " or ".join(given)
    return f"{name} of {kind(part['items'])}" if isinstance(part.get("items"), dict) else name
