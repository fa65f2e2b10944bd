"""Calls that a model writes as text: the grammar of what counts as one.

A reply is read as a call when all of it is one, or several of one form. They are written as

* tags: `<tool_call>`, `<function_call>` or `<tools>` around JSON, `<function=NAME>` around JSON or
  `<parameter=…>` tags, `[TOOL_CALLS]` before JSON or `NAME[ARGS]{…}`; the last may be unclosed;
* fenced JSON (```` ```json ````, ```` ```tool_call ```` or bare), and JSON alone: an object, a
  list, or one after another. It may be written as models write it (`worker.relaxed`);
* Python: `NAME("text", other=3)`, one or several or a list of them, with literals alone;
* ReAct: `Action: NAME` and on the next line `Action Input: …`, which is JSON, or plain text for a
  tool that needs one text;
* one block of Python or shell code, for the tool that takes it (`read_code`, in narrower bounds).

In JSON a call is `{NAME, ARGUMENTS}` with no third thing: the name under `name`, `tool`,
`function`, `tool_name` or `action`; the arguments, an object or a string of JSON, under
`arguments`, `parameters`, `args`, `input` or `action_input`. So are the shapes of the chat API,
`{"type": "function", "function": {…}}` and `{"tool_calls": […]}`.

It must name a tool that is offered (`worker.names`), or give the final answer as a call would.
Before it there may be a sentence, which does not say that it quotes or has run something; behind
it nothing but what the call is going to do (not for a block of code), and what the model has made
up as the result. Both are dropped, and reported. Everything else is what it says: prose that
mentions JSON, code that is shown. What was cut off is no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from worker.arguments import where
from worker.messages import Role, ToolCall, Wire
from worker.models.base import Request
from worker.models.pythonic import PythonCall, read_pythonic
from worker.names import is_answer, known_name
from worker.relaxed import Unreadable, Value, read_value

_NAMES = ("name", "tool", "function", "tool_name", "action")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input")
_BESIDE = {"id", "type", "index", "thought"}
_OPEN = re.compile(
    r"<(?:tool_call|function_call|tool_calls|tools)>\s*(?:```\w*\s*)?(?=[<\[{])"
    r"|(?=<function=)|\[TOOL_CALLS\]\s*"
)
_CLOSE = re.compile(
    r"(?:\s*(?:```|</(?:tool_call|function_call|tool_calls|tools|function)>))*[\s,;]*"
)
_FUNCTION = re.compile(r"<function=(?P<name>[\w.:-]+)>\s*")
_PARAMETER = re.compile(
    r"\s*<parameter=(?P<key>[\w.-]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL
)
_ARGS = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\s*(?:\[ARGS\])?\s*(?=\{)")
_FENCE = re.compile(
    r"^[ \t]*```(?:json|tool_call|tool_code|tool|function_call)?[ \t]*\n", re.MULTILINE
)
_FENCED_TAGS = re.compile(r"```\w*\s*\n(?P<tags><(?:tool_call|function).*)\n[ \t]*```", re.DOTALL)
_FENCE_END = re.compile(r"\s*```[ \t]*(?=\n|\Z)")
_JSON_LINE = re.compile(r"^[ \t]*(?=[\[{])", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,;]*")
_ACTION = re.compile(
    # nothing is taken back: `_` and white space may belong to more than one part
    r"^[*_ \t]*+Action[*_ \t]*+:[*_ \t]*+[`\"'\[]?(?P<name>[\w.:-]++)[`\"'\]]?[*_ \t]*+\n"
    r"\s*+[*_ \t]*+Action[ _]Input[*_ \t]*:[*_ \t]*",
    re.MULTILINE | re.IGNORECASE,
)
_REACT_LINE = re.compile(
    r"^[*_ \t]*(?:Observation|Thought|Action|Final Answer)[*_ \t]*:", re.MULTILINE | re.IGNORECASE
)
FINAL = re.compile(r"^[*_ \t]*Final Answer[*_ \t]*:[*_ \t]*", re.MULTILINE | re.IGNORECASE)
_HEAD = r"\A(?P<said>(?:(?!```).)*?)^[ \t]*```(?P<language>python3?|py|bash|sh|shell)[ \t]*\n"
_BLOCK_HEAD = re.compile(_HEAD, re.DOTALL | re.MULTILINE | re.IGNORECASE)
_BLOCK = re.compile(
    _HEAD + r"(?P<code>.*?)\n[ \t]*```[ \t]*(?=\n|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.|\$|In \[\d*\]:) ", re.MULTILINE)
_MADE_UP = re.compile(
    r"\A[*_#>\s]*(?:(?:Observation|(?:Tool )?(?:Result|Output|Response))s?(?: of \w+)?[*_]*\s*:"
    r"|<(?:tool_result|tool_response|tool_output|function_result|observation|result|output)\b"
    r"|```(?:output|text|console|result)\b)",
    re.IGNORECASE,
)
_QUOTES = re.compile(
    r"\b(?:example|e\.g\.|for instance|ran|used|executed|printed|would|could|you can|like this"
    r"|(?:requests?|calls?|JSON|API|message|body) (?:format|syntax|schema|structure|template|body)"
    r"|payload|(?:accepts?|expects?) (?:the|an?|this|such|one|either|JSON|objects?)"
    r"|(?:looks?|written|formatted|structured) (?:like|as))\b",
    re.IGNORECASE,
)
_AHEAD = re.compile(r"\b(?:will|going to|let me|let['’]s|once|wait)\b", re.IGNORECASE)
_SHOWS = re.compile(
    r"\b(?:you|your|answer|result|output|final|solution|function|script|snippet|did|was|were)\b",
    re.IGNORECASE,
)
_WORDS = r"(?:\s+(?!(?:per|by|of|for|in|each|to|from|with)\b)[\w-]+){0,4}\s+"
_ASKS_FOR_CODE = re.compile(
    r"\b(?:write|show|give|provide|create|generate|suggest|explain|implement|what|which)"
    rf"{_WORDS}(?:code|function|script|snippet|command|one-liner|regex)\b"
    rf"|\b(?:write|implement){_WORDS}(?:class|program|query)\b"
    r"|\bhow (?:to|(?:do|can|would|could|should) (?:I|you|we|one))\b|\bimplement\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r"\A\s*(?:<\|?(?:tool_call|function_call|tool_calls|tools>|function=|invoke|action\b)|\[TOOL_CALLS\])"
    r"|<tool_call>[^<]*(?:</tool_call>\s*)?\Z"
)
_BEGUN = re.compile(
    r"(?:```\w*\s*)?[\[{\s]*[\"']?(?:name|tool|function|tool_name|action)[\"']?\s*:\s*"
    r"[\"'](?P<name>[^\"'\n]{1,80})[\"']"
)
_HAS_ARGUMENTS = re.compile(r"[\"']?(?:arguments|parameters|args|input|action_input)[\"']?\s*:")
_LEAD_CHARS = 300
_DROPPED = "what followed the call was dropped: a result comes from the tool alone"


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools that may be called, each with its one required text where it needs no more.

    `parameters` are the names of its arguments, in their order.
    """

    texts: dict[str, str | None]
    parameters: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, tools: Iterable[Wire]) -> Offered:
        taken = {t["function"]["name"]: t["function"].get("parameters") or {} for t in tools}
        return cls(
            {name: _one_text(parameters) for name, parameters in taken.items()},
            {name: tuple(p.get("properties") or ()) for name, p in taken.items()},
        )

    def name(self, said: str) -> str | None:
        """The tool that is meant; an answer keeps the name that the model gives it."""
        return said if is_answer(said, self.texts) else known_name(said, self.texts)

    def text(self, name: str) -> str | None:
        return self.texts.get(name, "answer") if self.name(name) else None


class Written(NamedTuple):
    """The words before the calls, the calls, and whether they are in the form of our prompt."""

    said: str
    calls: tuple[ToolCall, ...]
    is_usual: bool = False


class _Raw(NamedTuple):
    name: str
    arguments: str
    note: str = ""


class _NoCallError(Exception):
    """The text is something else."""


def read_calls(text: str, offered: Offered) -> Written | None:
    """The calls that a reply is; None when it is something else."""
    text = text.strip()
    if fenced := _FENCED_TAGS.fullmatch(text):
        text = fenced["tags"]
    for form in (_tagged, _fenced, _bare, _react, _pythonic):
        try:
            if written := form(text, offered):
                return written
        except (_NoCallError, Unreadable):
            continue
    return None


def read_code(text: str, offered: Offered, goal: str) -> Written | None:
    """The call that a block of code is, where it cannot have been meant as the answer.

    That is: nobody asked for code, the sentence before it speaks of no answer, of nothing that was
    done and to nobody, and it is no transcript of an interpreter.
    """
    block = _only_block(text, offered)
    if block is None or asks_for_code(goal) or not _leads(block["said"], _SHOWS):
        return None
    rest = text.strip()[block.end() :].strip()
    if rest and not _MADE_UP.match(rest):
        return None
    return _in_block(block, rest, offered)


def read_asked_code(text: str, offered: Offered, goal: str) -> Written | None:
    """The call that the first block of code is, of a model that was told to call in this way.

    What it says behind it knows no result yet, and is dropped.
    """
    block = _only_block(text, offered)
    if block is None or asks_for_code(goal):
        return None
    return _in_block(block, text.strip()[block.end() :].strip(), offered)


def _in_block(block: re.Match[str], rest: str, offered: Offered) -> Written:
    name = _runs(block, offered)
    arguments = json.dumps({offered.text(name): block["code"]}, ensure_ascii=False)
    note = _DROPPED if rest else None
    call = ToolCall(id="text_0", name=name, arguments=arguments, repaired=note)
    return Written(block["said"].strip(), (call,), is_usual=True)


def goal_of(request: Request) -> str:
    """What somebody wants, as the model is told it."""
    return next((m.text for m in request.messages if m.role is Role.USER), "")


def is_only_code(text: str, offered: Offered) -> bool:
    """Whether a reply is a block of code for one of the tools, closed or not, and no more."""
    block = _BLOCK_HEAD.match(text.strip())
    if block is None or not _runs(block, offered) or len(block["said"]) > _LEAD_CHARS:
        return False
    return not text.strip()[block.end() :].partition("```")[2].strip()


def asks_for_code(goal: str) -> bool:
    """Whether code may be the answer to what somebody wants (in English)."""
    return bool(_ASKS_FOR_CODE.search(goal))


def unreadable(text: str, offered: Offered) -> str | None:
    """Why a text that begins as a call is none; None for one that does not begin so."""
    begun = _BEGUN.match(text.strip())
    is_named = begun and offered.name(begun["name"]) and _HAS_ARGUMENTS.search(text)
    action = _ACTION.search(text)
    if action and not offered.name(action["name"]):
        return f"there is no tool {action['name'][:80]!r}"
    if not is_named and not action and not _MARKUP.search(text):
        return None
    start = min((i for i in map(text.find, "{[") if i >= 0), default=-1)
    try:
        read_value(text, start if start >= 0 else len(text))
    except Unreadable as error:
        return where(error)
    return "it names no tool that there is, or is not all of the reply"


# ---- the forms


def _tagged(text: str, offered: Offered) -> Written | None:
    first = _OPEN.search(text)
    if first is None or not _is_apart(text[: first.start()]):
        return None
    raws: list[_Raw] = []
    at = first.start()
    while found := _OPEN.match(text, at):
        more, at = _in_tag(text, found.end(), offered)
        raws += more
    written = _written(text[: first.start()], raws, text[at:])
    return written and written._replace(is_usual=text.startswith("<tool_call>", first.start()))


def _in_tag(text: str, at: int, offered: Offered) -> tuple[list[_Raw], int]:
    if named := _FUNCTION.match(text, at):
        raws, at = _in_function(text, named, offered)
    elif named := _ARGS.match(text, at):
        value, at, notes = read_value(text, named.end())
        raws = [_raw(named["name"], value, notes, offered)]
    else:
        raws, at = _values(text, at, offered)
    if not raws:
        raise _NoCallError
    closing = _CLOSE.match(text, at)
    return raws, closing.end() if closing else at


def _in_function(text: str, named: re.Match[str], offered: Offered) -> tuple[list[_Raw], int]:
    at = named.end()
    if text.startswith("{", at):
        value, at, notes = read_value(text, at)
        return [_raw(named["name"], value, notes, offered)], at
    arguments = {}
    while found := _PARAMETER.match(text, at):
        arguments[found["key"]] = found["value"]
        at = found.end()
    if not arguments:
        raise _NoCallError
    return [_raw(named["name"], arguments, (), offered)], at


def _fenced(text: str, offered: Offered) -> Written | None:
    first = _FENCE.search(text)
    if first is None or not _leads(text[: first.start()]):
        return None
    raws: list[_Raw] = []
    at = first.start()
    while found := _FENCE.match(text, at):
        more, at = _values(text, _after(_BETWEEN, text, found.end()), offered)
        raws += more
        closing = _FENCE_END.match(text, at)
        if closing is None:
            raise _NoCallError
        at = _after(_BETWEEN, text, closing.end())
    return _written(text[: first.start()], raws, text[at:])


def _bare(text: str, offered: Offered) -> Written | None:
    first = _JSON_LINE.search(text)
    if first is None or not _leads(text[: first.start()]):
        return None
    raws, at = _values(text, first.end(), offered)
    return _written(text[: first.start()], raws, text[at:])


def _react(text: str, offered: Offered) -> Written | None:
    found = _ACTION.search(text)
    if found is None or "```" in text[: found.start()] or FINAL.search(text[: found.start()]):
        return None
    following = _REACT_LINE.search(text, found.end())
    end = following.start() if following else len(text)
    value, end, notes = _input(text, found.end(), end)
    raw = _raw(found["name"], value, notes, offered)
    if text[end:].strip():
        raw = raw._replace(note=_joined(raw.note, _DROPPED))
    return _written(text[: found.start()], [raw])


def _pythonic(text: str, offered: Offered) -> Written | None:
    return _written("", [_from_python(call, offered) for call in read_pythonic(text)])


def _from_python(call: PythonCall, offered: Offered) -> _Raw:
    name = offered.name(call.name)
    parameters = offered.parameters.get(name, ("answer",)) if name else ()
    if len(call.places) > len(parameters):
        raise _NoCallError
    arguments = dict(zip(parameters, call.places, strict=False))
    if arguments.keys() & call.named.keys():
        raise _NoCallError
    try:
        json.dumps(given := {**arguments, **call.named})
    except (TypeError, ValueError):  # bytes, sets, complex numbers
        raise _NoCallError from None
    return _raw(call.name, given, ("the call was written as Python",), offered)


def _input(text: str, start: int, end: int) -> Value:
    """JSON, or what stands there up to `end`; what is no JSON is left for the tool to refuse."""
    given = text[start:end].strip()
    try:
        return read_value(text, start) if given.startswith("{") else Value(_unfenced(given), end)
    except Unreadable:
        return Value(given, end)


def _unfenced(given: str) -> str:
    """A plain text without the fence around it. Raises for a fence that was left open."""
    block = re.fullmatch(r"```\w*[ \t]*\n(.*?)\n?[ \t]*```", given, re.DOTALL)
    if not block and given.startswith("```"):
        raise _NoCallError
    return block[1] if block else given


# ---- what they are made of


def _values(text: str, at: int, offered: Offered) -> tuple[list[_Raw], int]:
    """Read calls in JSON, one after another."""
    raws: list[_Raw] = []
    while text.startswith(("{", "["), at):
        value, end, notes = read_value(text, at)
        raws += _in_value(value, notes, offered)
        at = _after(_BETWEEN, text, end)
    return raws, at


def _in_value(value: Any, notes: tuple[str, ...], offered: Offered) -> Iterator[_Raw]:  # noqa: ANN401 - JSON
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"] if value.keys() <= {"tool_calls", "role", "content"} else None
    if isinstance(value, list):
        for item in value:
            yield from _in_value(item, notes, offered)
        return
    if not isinstance(value, dict):
        raise _NoCallError
    if isinstance(value.get("function"), dict) and value.keys() <= {"function", *_BESIDE}:
        value = value["function"]
    names = [key for key in _NAMES if isinstance(value.get(key), str)]
    given = [key for key in _ARGUMENTS if key in value]
    if len(names) != 1 or len(given) != 1 or value.keys() - {*names, *given, *_BESIDE}:
        raise _NoCallError
    yield _raw(value[names[0]], value[given[0]], notes, offered)


def _raw(said: str, arguments: Any, notes: tuple[str, ...], offered: Offered) -> _Raw:  # noqa: ANN401
    """A call by its parts. Raises `_NoCallError` when they are none of one."""
    name = offered.name(said)
    if name is None:
        raise _NoCallError
    if isinstance(arguments, str) and not arguments.lstrip().startswith("{"):
        one = offered.text(name)
        if one is None or not arguments.strip():
            raise _NoCallError
        arguments = {one: arguments}
    if not isinstance(arguments, dict | str):
        raise _NoCallError
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    renamed = "" if said == name else f"the tool's name was {said[:80]!r}"
    return _Raw(name, text, _joined(renamed, *notes))


def _written(said: str, raws: list[_Raw], rest: str = "") -> Written | None:
    """The calls, unless something stands behind them that is not made up by the model."""
    rest = rest.strip()
    if not raws or (rest and not _MADE_UP.match(rest) and not _looks_ahead(rest)):
        return None
    calls = tuple(
        ToolCall(
            id=f"text_{i}",
            name=raw.name,
            arguments=raw.arguments,
            repaired=_joined(raw.note, _DROPPED if rest else "") or None,
        )
        for i, raw in enumerate(raws)
    )
    return Written(said.strip(), calls)


def _looks_ahead(rest: str) -> bool:
    """Whether words behind a call say what it is going to do, and know nothing of its result."""
    is_plain = len(rest) <= 2 * _LEAD_CHARS and not re.search(r"[`<{]", rest)
    return is_plain and bool(_AHEAD.search(rest)) and not _QUOTES.search(rest)


def _only_block(text: str, offered: Offered) -> re.Match[str] | None:
    block = _BLOCK.match(text.strip())
    if block is None or _PROMPT.search(block["code"]) or not block["code"].strip():
        return None
    return block if _runs(block, offered) else None


def _runs(block: re.Match[str], offered: Offered) -> str:
    """The tool that runs a block of code, or nothing."""
    name = known_name(block["language"], offered.texts)
    return name if name and offered.texts[name] else ""


def _is_apart(said: str) -> bool:
    """Whether what follows stands by itself, and is not quoted in a sentence or as code."""
    if "```" in said:
        return False
    return not said.strip() or said.endswith("\n") or said.rstrip()[-1] in ".!?:…>"


def _leads(said: str, *more: re.Pattern[str]) -> bool:
    """Whether words before a call say what is to be done, and do not show or quote something."""
    said = said.strip()
    is_short = len(said) <= _LEAD_CHARS and "\n\n" not in said and "`" not in said
    return is_short and not any(words.search(said) for words in (_QUOTES, *more))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _after(what: re.Pattern[str], text: str, at: int) -> int:
    found = what.match(text, at)
    return found.end() if found else at


def _one_text(parameters: Wire) -> str | None:
    required = parameters.get("required") or []
    part = (parameters.get("properties") or {}).get(required[0]) if len(required) == 1 else None
    return required[0] if isinstance(part, dict) and part.get("type") == "string" else None
