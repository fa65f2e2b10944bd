"""Make one shape of the many in which endpoints send a reply.

Seen in the wild: no ids or the same id twice, arguments as an object or null, calls in the old
`function_call` field or among the parts of the content, thoughts inside the content or in a field
of another name, finish reasons that say `stop` for a call and `tool_calls` for a reply that was
cut off, text and calls of one reply as two choices.
"""

from __future__ import annotations

import json
from typing import Any

from worker.arguments import clean
from worker.errors import ModelUnavailable
from worker.messages import Finish, Message, Wire
from worker.models.streaming import read_json
from worker.models.thoughts import split_thought

_DROPPED = {"function_call", "refusal", "annotations", "audio"}
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_CUT = {"length", "max_tokens", "model_length", "max_output_tokens", "token_limit", "incomplete"}
_FILTERED = {
    *("content_filter", "safety", "recitation", "prohibited_content", "blocklist", "sensitive"),
    *("content_filtered", "refusal"),
}
_INTERRUPTED = {
    *("error", "network_error", "abort", "aborted", "cancelled", "canceled"),
    *("insufficient_system_resource", "internal_error", "timeout"),
}
_THOUGHT_PARTS = {"thinking", "reasoning", "reasoning_content", "thought"}
_CALL_PARTS = {"tool_use", "tool_call", "function_call"}


# ---- the reply


def chosen_of(answer: Wire) -> Wire | None:
    """The choice that is the reply: with calls if one has any, else with text, else the first."""
    choices = answer.get("choices")
    if isinstance(choices, dict):
        choices = [choices] if "message" in choices else list(choices.values())
    listed = choices if isinstance(choices, list) else []
    found = [choice for choice in listed if isinstance(choice, dict)]
    if not found:
        return None
    messages = [(choice, _message_of(choice)) for choice in found]
    for name in ("tool_calls", "function_call", "content"):
        for choice, message in messages:
            if isinstance(message, dict) and message.get(name):
                return {**choice, "message": message}
    return {**found[0], "message": messages[0][1]}


def _message_of(choice: Wire) -> object:
    message = choice.get("message")
    text = choice.get("text") if message is None else message
    return {"role": "assistant", "content": text} if isinstance(text, str) else message


def normal_finish(said: object) -> Finish:
    """Why the reply ended; `tool_calls` and unknown words are an ordinary end."""
    word = said.lower() if isinstance(said, str) else ""
    if word in _CUT:
        return Finish.LENGTH
    return Finish.FILTER if word in _FILTERED else Finish.STOP


def is_interrupted(choice: Wire) -> bool:
    """Whether the endpoint itself says that it broke the reply off."""
    said = choice.get("finish_reason")
    return bool(choice.get("error")) or (isinstance(said, str) and said.lower() in _INTERRUPTED)


def normal_message(wire: Any) -> Message:  # noqa: ANN401 - whatever came
    """The assistant's message in its one shape.

    Raises `ModelUnavailable` for what is no message at all.
    """
    if not isinstance(wire, dict):
        raise ModelUnavailable(f"the reply has no message but {type(wire).__name__}")
    wire = clean(wire)
    said, thought = _said(wire.get("content"))
    content, tagged = split_thought(said or _text(wire.get("refusal")))
    known = {"role", "content", "tool_calls", "finish_reason", *_DROPPED, *_REASONING[1:]}
    message: Wire = {k: v for k, v in wire.items() if k not in known and v is not None}
    thoughts = [_reasoning(wire), thought, tagged]
    if whole := "\n".join(dict.fromkeys(t for t in thoughts if t)):
        message["reasoning_content"] = whole
    message = {"role": "assistant", "content": content or None, **message}
    calls = _calls(wire)
    return Message.from_wire({**message, "tool_calls": calls} if calls else message)


# ---- text and thoughts


def _said(content: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever came
    """The text of a content, and what of it was only thought."""
    if not isinstance(content, list):
        return _text(content), ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        kind = _kind(part)
        if kind in _CALL_PARTS:
            continue
        (thoughts if kind in _THOUGHT_PARTS else texts).append(_text(part))
    return "".join(texts), "".join(thoughts)


def _kind(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _text(value: Any) -> str:  # noqa: ANN401 - whatever came
    """The text in a value of any shape."""
    if isinstance(value, list):
        return "".join(_text(part) for part in value)
    if isinstance(value, dict):
        names = ("text", "content", "thinking", "reasoning", "value", "summary")
        return next((text for name in names if (text := _text(value.get(name)))), "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # an answer that is a number, by servers that read it as JSON
    return value if isinstance(value, str) else ""


def _reasoning(wire: Wire) -> str:
    return next((text for name in _REASONING if (text := _text(wire.get(name)))), "")


# ---- calls


def _calls(wire: Wire) -> list[Wire]:
    calls = _listed(wire.get("tool_calls"))
    if not calls and isinstance(wire.get("function_call"), dict):
        calls = [{"function": wire["function_call"]}]
    if not calls and isinstance(wire.get("content"), list):
        parts = wire["content"]
        calls = [part for part in parts if _kind(part) in _CALL_PARTS]
    return [_call(call, i) for i, call in enumerate(calls) if isinstance(call, dict)]


def _listed(calls: Any) -> list[Any]:  # noqa: ANN401 - whatever came
    """Calls as a list, whether they came as one, as a single one, by number, or as JSON."""
    if isinstance(calls, str):
        try:
            calls = read_json(calls)
        except ValueError:
            return []
    if isinstance(calls, dict):
        is_one = calls.keys() & {"function", "name", "custom"}
        return [calls] if is_one else list(calls.values())
    return calls if isinstance(calls, list) else []


def _call(call: Wire, index: int) -> Wire:
    function = call.get("function") or call.get("custom")
    if not isinstance(function, dict):
        named = function if isinstance(function, str) else call.get("name")
        function = {**call, "name": named}
    spelled = ("arguments", "parameters", "input", "args")
    arguments = next((function[key] for key in spelled if function.get(key) is not None), "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    known = {"index", "function", "custom", "name", "type", *spelled}
    rest = {k: v for k, v in call.items() if k not in known}
    name = function.get("name")
    named = {"name": name if isinstance(name, str) else "", "arguments": arguments}
    identity = call.get("id")
    identity = identity if isinstance(identity, str) and identity else f"call_{index}"
    return {**rest, "id": identity, "type": "function", "function": named}
