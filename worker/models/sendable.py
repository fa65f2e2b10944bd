"""A call of the model as every endpoint takes it back.

Endpoints check what they are sent more strictly than what they send. OpenAI's refuses a name with
another character than letters, digits, `_` and `-`; vLLM and llama.cpp refuse arguments that are
no JSON object, and every later request of the job with them. The history keeps what was said.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from worker.arguments import clean, read_arguments
from worker.errors import ArgumentsInvalid
from worker.messages import Wire
from worker.names import bare
from worker.relaxed import is_deep

_KNOWN = {"id", "type", "function", "extra_content"}
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS = 64


def sendable_call(call: Wire) -> Wire:
    """The call without fields that only some endpoints know, its name and arguments as all do."""
    function = call["function"]
    name = _NO_NAME.sub("_", bare(function["name"])[:_NAME_CHARS]) or "unnamed"
    arguments = _as_object(function["arguments"])
    known = {key: value for key, value in call.items() if key in _KNOWN}
    return {**known, "function": {"name": name, "arguments": arguments}}


def _as_object(text: str) -> str:
    """Arguments as the JSON of an object: as they are, as we have read them, or as a text in one.

    None are left out, or the model would not see what the result of its call is about.
    """
    if _is_object(text):
        return text
    try:
        return json.dumps(read_arguments(text)[0], ensure_ascii=False, allow_nan=False)
    except (ArgumentsInvalid, ValueError):  # the result says what is wrong with them
        return json.dumps({"unreadable": text}, ensure_ascii=False)


def _is_object(text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not is_deep(value) and value == clean(value)


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)
