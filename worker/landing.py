"""The end of a last turn: whatever its reply says is the answer, and nothing is sent back.

Small models have got stuck by then, and say no more than the call that they have made before, or
its code. Where that is the last thing that ran, what it has shown is the best answer there is;
`error` says so. Wherever it can be meant otherwise the reply stays what it is: with words beside
it, with code that defines something or was asked for, and behind an answer that was sent back.
"""

from __future__ import annotations

import re
from typing import Any

from sandbox.types import Outcome
from worker.answers import Answers
from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid
from worker.history import History
from worker.hooks import Hook, Run, landed
from worker.messages import Message, Reply, ResultStatus, Role, ToolCall, ToolResult
from worker.models.text_calls import (
    Offered,
    Written,
    asks_for_code,
    is_only_code,
    read_asked_code,
    read_calls,
)

_MOST_SHOWN = 4000  # characters; a longer output is no answer
_DEFINES = re.compile(r"^\s*(?:async\s+)?(?:def|class|function)\b", re.MULTILINE)


class Landing(Hook):
    """Ends the job with the reply that `Run.land` asked for, whatever it is."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def after_model(self, run: Run, reply: Reply) -> None:
        if (asked := run.history.landing) is None:
            return
        told = []
        if shown := self._shown_again(run.history, reply):
            reply = Reply(message=Message(role=Role.ASSISTANT, content=shown))
            told.append("the answer is what the last call has shown, which was made again")
        answer, wrong = self._answers.checked(reply)
        if self._answers.is_blank(answer) or self._answers.fault_of(reply):
            answer, wrong = "", ()
        if wrong:
            told.append(f"the answer does not fit the schema: {wrong[0]}")
        raise landed(asked, answer, "; ".join(told))

    def _shown_again(self, history: History, reply: Reply) -> str:
        """What the last call has shown, if the reply is no more than that call; else ""."""
        offered, before = self._answers.offered, history.sent_back
        if asks_for_code(history.job.goal) or (before and not is_only_code(before, offered)):
            return ""
        last, again = _last_run(history), _only_call(reply, history.job.goal, offered)
        if last is None or again is None or _said(again) is None or _said(again) != _said(last[0]):
            return ""
        done = last[1].execution
        if done is None or done.outcome is not Outcome.OK or done.output_truncated:
            return ""
        shown = done.output.strip() or done.value or ""
        is_text = not self._answers.is_blank(shown) and not read_calls(shown, offered)
        return shown if is_text and len(shown) <= _MOST_SHOWN else ""


def _last_run(history: History) -> tuple[ToolCall, ToolResult] | None:
    """The last call that was not skipped, with its result."""
    for turn in reversed(history.turns):
        for call in reversed(turn.calls):
            result = turn.results.get(call.id)
            if result is not None and result.status is not ResultStatus.SKIPPED:
                return call, result
    return None


def _only_call(reply: Reply, goal: str, offered: Offered) -> ToolCall | None:
    """The one call that a reply is, with no words beside it."""
    text = reply.text
    if reply.calls:
        written: Written | None = Written(text, reply.calls)
    elif is_only_code(text, offered):
        written = read_asked_code(text, offered, goal)
    else:
        written = read_calls(text, offered)
    if written is None or len(written.calls) != 1 or written.said.strip():
        return None
    return written.calls[0]


def _said(call: ToolCall) -> tuple[str, dict[str, Any]] | None:
    """The tool and what it is told, but for the limit of time; None if that may be the answer."""
    try:
        arguments, _ = read_arguments(call.arguments)
    except ArgumentsInvalid:
        return None
    arguments.pop("timeout_s", None)
    told = {key: text.strip() if isinstance(text, str) else text for key, text in arguments.items()}
    if any(isinstance(text, str) and _DEFINES.search(text) for text in told.values()):
        return None
    return call.name, told
