"""Calls that come as text: `<tool_call>` tags, fenced JSON, or bare JSON.

What counts is strict. A reply is a call when all of it is one (before tags there may be a sentence)
and it names a tool that was offered. Prose that mentions JSON, or quotes code, is not a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid
from worker.messages import Reply, ToolCall
from worker.models.base import Model, Request

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>|<tool_call>\s*(\{.*\})\s*\Z", re.DOTALL)
_FENCED = re.compile(r"\A```(?:json|tool_call|tool)?[ \t]*\n(.*)\n[ \t]*```\Z", re.DOTALL)
_NOTE = "the call came as text, not through the tool-call interface"
_KEYS = {"name", "arguments", "parameters", "id", "type"}


class TextCalls:
    """Wraps a model: a reply that is a call in text becomes a call, reported as repaired."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        reply = self._model.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)
        if reply.calls or not request.tools:
            return reply
        said, calls = calls_in(reply.text, request.tool_names)
        if not calls:
            return reply
        message = reply.message.model_copy(
            update={"content": said or None, "tool_calls": tuple(calls)}
        )
        return reply.model_copy(update={"message": message})

    def close(self) -> None:
        self._model.close()


def calls_in(text: str, names: frozenset[str]) -> tuple[str, list[ToolCall]]:
    """The sentence before the calls, and the calls; no calls when the text is something else."""
    text = text.strip()
    if tagged := list(_TAGGED.finditer(text)):
        said, rest = text[: tagged[0].start()].strip(), _TAGGED.sub("", text[tagged[0].start() :])
        bodies = [found[1] or found[2] or "" for found in tagged]
        whole = not rest.strip() and "```" not in said
    else:
        fenced = _FENCED.match(text)
        said, bodies, whole = "", [fenced[1] if fenced else text], True
    if not whole or not all(body.startswith(("{", "[")) for body in bodies):
        return text, []
    calls = [call for body in bodies for call in _calls(body, names)]
    return (said, calls) if calls and None not in calls else (text, [])  # type: ignore[return-value]


def _calls(body: str, names: frozenset[str]) -> list[ToolCall | None]:
    try:
        values = json.loads(body) if body.startswith("[") else [read_arguments(body)[0]]
    except (ArgumentsInvalid, ValueError):
        return [None]
    return [_call(value, names, i) for i, value in enumerate(values)]


def _call(value: Any, names: frozenset[str], index: int) -> ToolCall | None:  # noqa: ANN401 - JSON
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or value.get("name") not in names or value.keys() - _KEYS:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, dict | str):
        return None
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=f"text_{index}", name=value["name"], arguments=text, repaired=_NOTE)
