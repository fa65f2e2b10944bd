"""Make one shape of the many in which endpoints send a reply.

Seen in the wild: no ids or the same id twice, arguments as an object or null, calls in the old
`function_call` field, content as a list of parts, thoughts inside the content, finish reasons
that say `stop` for a call and `tool_calls` for a reply that was cut off.
"""

from __future__ import annotations

import json
import re
from typing import Any

from worker.arguments import clean
from worker.errors import ModelUnavailable
from worker.messages import Finish, Message, Wire

_THOUGHT = re.compile(r"\A\s*<(think|thinking|thought|reasoning)>(.*?)</\1>", re.DOTALL)
_OPEN_THOUGHT = re.compile(r"\A\s*<(think|thinking|thought|reasoning)>(.*)\Z", re.DOTALL)
_CLOSE_ONLY = re.compile(r"\A((?:(?!<think).)*?)</(?:think|thinking)>", re.DOTALL)
_DROPPED = {"function_call", "refusal", "annotations", "audio"}


def normal_message(wire: Any) -> Message:  # noqa: ANN401 - whatever came
    """The assistant's message in its one shape.

    Raises `ModelUnavailable` for what is no message at all.
    """
    if not isinstance(wire, dict):
        raise ModelUnavailable(f"the reply has no message but {type(wire).__name__}")
    wire = clean(wire)
    content, thought = split_thought(_text(wire.get("content")) or _text(wire.get("refusal")))
    known = {"role", "content", "tool_calls", "finish_reason", *_DROPPED}
    message: Wire = {k: v for k, v in wire.items() if k not in known and v is not None}
    if thought and not message.get("reasoning_content"):
        message["reasoning_content"] = thought
    message = {"role": "assistant", "content": content or None, **message}
    calls = _calls(wire)
    return Message.from_wire({**message, "tool_calls": calls} if calls else message)


def normal_finish(said: object) -> Finish:
    """Why the reply ended; `tool_calls` and unknown words are an ordinary end."""
    if said in {"length", "max_tokens", "model_length", "MAX_TOKENS"}:
        return Finish.LENGTH
    return Finish.FILTER if said == "content_filter" else Finish.STOP


def split_thought(text: str) -> tuple[str, str]:
    """Split `<think>…</think>` off the front of a text; an unclosed one is all thought."""
    thoughts = []
    while found := _THOUGHT.match(text):
        thoughts.append(found[2].strip())
        text = text[found.end() :]
    if found := _OPEN_THOUGHT.match(text):
        thoughts.append(found[2].strip())
        text = ""
    elif found := _CLOSE_ONLY.match(text):  # the template swallowed the opening tag
        thoughts.append(found[1].strip())
        text = text[found.end() :]
    return text.strip() if thoughts else text, "\n".join(t for t in thoughts if t)


def _text(content: Any) -> str:  # noqa: ANN401 - whatever came
    if isinstance(content, list):
        parts = [p.get("text", "") if isinstance(p, dict) else p for p in content]
        return "".join(p for p in parts if isinstance(p, str))
    return content if isinstance(content, str) else ""


def _calls(wire: Wire) -> list[Wire]:
    calls = wire.get("tool_calls") or []
    if not calls and isinstance(wire.get("function_call"), dict):
        calls = [{"function": wire["function_call"]}]
    if isinstance(calls, dict):
        calls = [calls]
    return [_call(call, i) for i, call in enumerate(calls) if isinstance(call, dict)]


def _call(call: Wire, index: int) -> Wire:
    function = call.get("function")
    if not isinstance(function, dict):
        function = {"name": call.get("name"), "arguments": call.get("arguments")}
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    rest = {k: v for k, v in call.items() if k not in {"index", "function", "name", "arguments"}}
    name = function.get("name")
    named = {"name": name if isinstance(name, str) else "", "arguments": arguments}
    identity = call.get("id")
    identity = identity if isinstance(identity, str) and identity else f"call_{index}"
    return {**rest, "id": identity, "type": "function", "function": named}
