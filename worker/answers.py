"""What the answer is: told from everything else, and checked against the schema that was asked for.

A reply without calls is the answer, and so is a call that gives one (`final_answer`, `submit` …)
where no tool of that name is offered. No word in a text ends a job; only the end of a ReAct reply,
`Final Answer:`, is taken off what follows it.

With a schema the answer must be JSON that fits (a fence around it, and words around that, are
dropped). What does not goes back with its faults a few times; then the job fails, and the last
answer is kept. The answer of a last turn is checked as well, see `worker.landing`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from worker.arguments import clean, read_arguments
from worker.errors import ArgumentsInvalid, SkipCall, Stop
from worker.fingerprints import shown
from worker.hooks import Hook, Run
from worker.messages import Finish, FinishReason, Reply, ToolCall, Wire
from worker.models.text_calls import FINAL, Offered, read_calls, unreadable
from worker.names import is_answer
from worker.prompts import notice

INVALID = "answer:invalid"
_KEYS = ("answer", "final_answer", "result", "text", "value", "content", "response", "output")
_TAGGED = re.compile(r"\A\s*<(final_answer|answer)>(.*)</\1>\s*\Z", re.DOTALL)
_THOUGHT = re.compile(r"\A\s*(?:[*_]*Thought[*_]*\s*:.*)?\Z", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*```(?:json)?(?=\s)", re.MULTILINE | re.IGNORECASE)
# What is asked for by name, and may be all of an answer: a separator, an operator, none of many.
_SIGN = re.compile(r"\A([`'\"]?)(?:[;,|:<>]|[<>=!]=)\1\Z")
# What may stand in a reply and says nothing: tags, control tokens, fences, rules and brackets,
# and characters that nobody sees.
_SAYS_NOTHING = re.compile(
    r"<[^<>]*>|```\w*|[\s\x00-\x1f\x7f\u200b-\u200f\u2060\ufeff`*_#>~|{}\[\]()\"'.,:;…=-]"
)
_AS_TEXT = "it came as text, not through the tool-call interface"
_NO_JSON = "it is not JSON"
_MOST_FAULTS = 10


def is_markup(text: str) -> bool:
    """Whether a text has nothing but white space and markup."""
    return not _SAYS_NOTHING.sub("", text) and not _SIGN.match(text.strip())


def is_json(text: str) -> bool:
    """Whether a text is one value of JSON, or has one in a fence; what was cut off is none."""
    try:
        json.loads(_unfenced(text))
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Answers:
    """How the answers of a job are read: what its tools are, and what an answer must fit."""

    offered: Offered
    schema: Wire | None = None

    def said_in(self, reply: Reply) -> tuple[str, ...]:
        """The answer that a reply gives, in the ways in which it can be meant; () if it calls."""
        calls, text = reply.calls, reply.text
        if not calls and (written := read_calls(text, self.offered)):
            text, calls = written.said, written.calls
        if not calls:
            return (_without_frame(text),)
        if not all(is_answer(call.name, self.offered.texts) for call in calls):
            return ()
        return tuple(_meant(calls[0], text))

    def fault_of(self, reply: Reply) -> str | None:
        """Why a text is neither an answer nor a call, though it looks like one."""
        if reply.calls:
            return None
        if read_calls(reply.text, self.offered):
            return None if self.said_in(reply) else _AS_TEXT
        return unreadable(reply.text, self.offered)

    def is_blank(self, answer: str) -> bool:
        """Whether an answer says nothing; where JSON is asked for, `[]` says something."""
        return is_markup(answer) if self.schema is None else not answer

    def checked(self, reply: Reply) -> tuple[str, tuple[str, ...]]:
        """The answer that is in a reply, and what is wrong with it."""
        said = self.said_in(reply) or (reply.text if reply.calls else "",)
        if self.schema is None or self.is_blank(said[0]):
            return said[0], ()
        found = [_fitting(text, self.schema) for text in said]
        # of those that do not fit, rather one that is JSON
        return min(found, key=lambda one: (bool(one[1]), _NO_JSON in str(one[1])))


class AnswerHook(Hook):
    """Ends the job with its answer, or sends it back with what is wrong with it."""

    def __init__(self, answers: Answers, corrections: int = 0) -> None:
        self._answers = answers
        self._corrections = corrections

    def after_model(self, run: Run, reply: Reply) -> None:
        is_sent_back = run.history.last.notices or reply.finish is not Finish.STOP
        if is_sent_back or not self._answers.said_in(reply):
            return
        answer, wrong = self._answers.checked(reply)
        if not wrong:
            raise Stop("taken as the answer", reason=FinishReason.ANSWERED, answer=answer)
        sent_back = sum(n.reason == INVALID for turn in run.history.turns for n in turn.notices)
        if sent_back >= self._corrections or reply.is_last:
            raise Stop(
                f"the answer does not fit the schema after {sent_back} corrections: {wrong[0]}",
                kind="AnswerInvalid",
                answer=answer,
            )
        run.notify(notice("answer_invalid", faults="\n".join(wrong)), INVALID, answer)

    def before_tool(self, run: Run, call: ToolCall) -> None:
        """An answer is no call: one that was not taken has a notice, or came too early."""
        if not is_answer(call.name, self._answers.offered.texts):
            return
        if len(run.history.last.calls) > 1:
            raise SkipCall(notice("answer_early"))
        raise SkipCall(notice("answer_not_taken"))


def _without_frame(text: str) -> str:
    """An answer without what stands around it by a model's habit."""
    if tagged := _TAGGED.match(text):
        return tagged[2].strip()
    final = FINAL.search(text)
    if final and _THOUGHT.match(text[: final.start()]):
        return text[final.end() :].strip()
    return text


def _meant(call: ToolCall, said: str) -> Iterator[str]:
    """What a call gives as the answer: the argument that is named so, what was said, or all."""
    try:
        arguments, _ = read_arguments(call.arguments)
    except ArgumentsInvalid:
        yield _plain(call.arguments) or said
        return
    named = [key for key in _KEYS if key in arguments]
    if named:
        yield _as_text(arguments[named[0]]) or said
    elif said or not arguments:
        yield said
    elif len(arguments) == 1:
        yield from map(_as_text, arguments.values())
    if arguments:
        yield _as_text(arguments)


def _plain(text: str) -> str:
    """Arguments that are no object; what was to be one and cannot be read is no answer."""
    if text.lstrip().startswith("{"):
        return ""
    try:
        return _as_text(json.loads(text))
    except (ValueError, RecursionError):
        return text.strip()


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fitting(text: str, schema: Wire) -> tuple[str, tuple[str, ...]]:
    """The answer as normal JSON, or as it is with what is wrong with it."""
    from worker.schema import faults  # noqa: PLC0415 - the library loads slowly

    try:
        value = clean(json.loads(_unfenced(text), parse_constant=_refuse))
        wrong = [
            f"{shown(place) or 'the answer'}: {fault}" for place, fault in faults(value, schema)
        ]
        fitting = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        return text, ("the answer is too deep",)
    except ValueError as error:
        return text, (f"{_NO_JSON}: {error}",)
    return (text, tuple(wrong[:_MOST_FAULTS])) if wrong else (fitting, ())


def _unfenced(text: str) -> str:
    """What is in the one fence of a text; the text, where there is none, or more than one."""
    opened = _FENCE.search(text)
    if not opened:
        return text
    inner, closing, _ = text[opened.end() :].rpartition("```")
    return inner if closing and not _FENCE.search(inner) else text


def _refuse(word: str) -> Any:  # noqa: ANN401 - what a number would be
    raise ValueError(f"{word} is no JSON")
