"""Tools in text, for models and servers that know no others: described, called and answered.

The tools stand in the system prompt, as signatures. Calls are written into the assistant's text,
and results come as messages of the user, so that every chat template takes them: the roles
alternate. A call is a block of code where a tool takes nothing but code, which is what models
write best, and `<tool_call>` tags otherwise; always those where the goal asks for code, which
would be the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid
from worker.messages import Message, Role, ToolCall, Wire
from worker.models.base import Request
from worker.models.text_calls import Offered, asks_for_code, goal_of
from worker.prompts import notice, text
from worker.signatures import describe

Blocks = dict[str, tuple[str, str]]  # by the name of a tool: a language, and an argument
LANGUAGES = {"python": "print(1 + 1)", "bash": "ls -l"}  # with an example of each


class TextTools:
    """Rewrites requests. What is in the last one is not written again."""

    def __init__(self) -> None:
        self._tools: tuple[Wire, ...] = ()
        self._described = ""
        self._blocks: Blocks = {}
        self._written: dict[tuple[int, ...], tuple[tuple[Message, ...], Message]] = {}

    def rewritten(self, request: Request) -> Request:
        """The same request, in text alone."""
        known, self._written = self._written, {}
        if request.tools and self._tools is not request.tools:
            self._tools, self._blocks = request.tools, blocks_of(request)
            self._described = describe_tools(request.tools, self._blocks)
            known = {}
        messages = []
        for group in _groups(request.messages):
            key = tuple(map(id, group))
            # which keeps the messages, so that their ids are their own
            self._written[key] = known.get(key) or (group, _as_one(group, self._blocks))
            messages.append(self._written[key][1])
        if request.tools:
            messages[0] = _with(messages[0], f"{messages[0].text}\n\n{self._described}")
        return request.model_copy(update={"messages": tuple(messages), "tools": ()})


def blocks_of(request: Request) -> Blocks:
    """The tools that are called by a block of code: its language, and the argument it is."""
    if asks_for_code(goal_of(request)):
        return {}
    offered = Offered.of(request.tools)
    named = {name: language for language in LANGUAGES if (name := offered.name(language))}
    return {n: (language, one) for n, language in named.items() if (one := offered.text(n))}


def describe_tools(tools: Iterable[Wire], blocks: Blocks) -> str:
    """The part of the system prompt that says which tools there are, and how to call each."""
    functions = [tool["function"] for tool in tools]
    told = [_in_block(f, blocks[f["name"]][0]) for f in functions if f["name"] in blocks]
    if rest := [_in_tags(f) for f in functions if f["name"] not in blocks]:
        which = "The other tools are" if told else "Tools are"
        told.append("\n".join([notice("call_tags", which=which), *rest]))
    return text("text_tools.md").format(tools="\n\n".join(told))


def written_call(call: ToolCall, blocks: Blocks) -> str:
    """A call as the prompt asks for it."""
    try:
        arguments, _ = read_arguments(call.arguments)
    except ArgumentsInvalid:  # as it was: the result says what is wrong with it
        given = call.arguments
    else:
        language, one = blocks.get(call.name, ("", ""))
        if set(arguments) == {one} and "```" not in str(arguments[one]):
            return f"```{language}\n{arguments[one]}\n```"
        given = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {given}}}\n</tool_call>'


def _in_block(function: Wire, language: str) -> str:
    said, example = _about(function), LANGUAGES[language]
    return notice(
        "call_block", name=function["name"], said=said, language=language, example=example
    )


def _in_tags(function: Wire) -> str:
    """A tool with its arguments as they are given, which is in JSON."""
    parameters = function.get("parameters") or {}
    rows = (parameters.get("properties") or {}).items()
    notes = [f"  {n}: {p['description']}" for n, p in rows if _is_noted(p)]
    return "\n".join([f"- {function['name']} {describe(parameters)}: {_about(function)}", *notes])


def _about(function: Wire) -> str:
    return " ".join(function.get("description", "").split())


def _is_noted(part: object) -> bool:
    return isinstance(part, dict) and bool(part.get("description"))


def _groups(messages: Sequence[Message]) -> Iterable[tuple[Message, ...]]:
    """Messages of one speaker that follow each other; a result is what the user says."""
    group: list[Message] = []
    for message in messages:
        if group and _speaker(message) is not _speaker(group[0]):
            yield tuple(group)
            group = []
        group.append(message)
    if group:
        yield tuple(group)


def _speaker(message: Message) -> Role:
    return Role.USER if message.role is Role.TOOL else message.role


def _as_one(group: tuple[Message, ...], blocks: Blocks) -> Message:
    if len(group) == 1 and group[0].role is not Role.TOOL and not group[0].tool_calls:
        return group[0]
    said = "\n\n".join(filter(None, (_said(message, blocks) for message in group)))
    return Message(role=_speaker(group[0]), content=said, extra=_reasoning(group[0]))


def _said(message: Message, blocks: Blocks) -> str:
    if message.role is Role.TOOL:
        return f"<tool_result>\n{message.text}\n</tool_result>"
    # a reply has one block; of several calls none is one
    forms = blocks if len(message.tool_calls) == 1 else {}
    calls = (written_call(call, forms) for call in message.tool_calls)
    return "\n".join(filter(None, [message.text.strip(), *calls]))


def _reasoning(message: Message) -> Wire:
    """What endpoints want back of a reply, and is no call."""
    return {key: value for key, value in message.extra.items() if key.startswith("reasoning")}


def _with(message: Message, content: str) -> Message:
    return message.model_copy(update={"content": content})
