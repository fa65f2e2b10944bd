"""Replies that are neither a call nor an answer: empty, cut off, unreadable, stuck, a promise.

Each is sent back with what was wrong; three in a row end the job. When loops are only observed,
they do not, and a reply that repeats itself is taken as it is: what cannot be used is sent back
all the same.

Code that is shown where a tool would run it is sent back once. Who asks for code gets it, and a
model that sends it again means it.
"""

from __future__ import annotations

import re
from itertools import islice

from worker.answers import Answers, is_json
from worker.budget import is_spent
from worker.errors import SkipCall, Stop
from worker.history import History
from worker.hooks import Hook, Run
from worker.messages import Finish, FinishReason, Reply, ToolCall
from worker.models.text_calls import asks_for_code, is_only_code
from worker.prompts import notice
from worker.repetition import repeats_itself
from worker.settings import LoopLimits

_PROMISE_CHARS = 400
_SENTENCE_END = re.compile(r"(?<=[.!?:…])\s+")
_PROMISE = re.compile(
    r"(?:(?:sure|certainly|of course|okay|ok|alright|great|understood|first|next|now|then)\b"
    r"[\s,.!:]*)*"
    r"(?:to [^.,\n]{3,120}, )?"
    r"(?:I(?:['’]ll| will| am going to|['’]m going to| need to| should| must)"
    r"|let me|let['’]s|let us|we(?:['’]ll| will| need to| should))\s+"
    r"(?:(?:now|first|then|next|also|start by|begin by|try to|go ahead and|use \w+ to)\s+)*"
    r"(?:run|execut|load|read|look|check|comput|calculat|start|begin|use|using|analy[sz]|inspect|write"
    r"|writing|try|find|open|explor|examin|creat|import|plot|fix|proceed|call|get|fetch|list|print"
    r"|verif|see|count|investigat)\w*\b",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"(?:sure|certainly|of course|okay|ok|alright|great|understood)[.!]", re.IGNORECASE
)
_SPEAKS = re.compile(r"\b(?:you|your|please|cannot|not|unable)\b|n['’]t\b", re.IGNORECASE)
_THOUGHT = re.compile(r"\A[*_\s]*Thought[*_]*\s*:", re.IGNORECASE)


class ReplyHook(Hook):
    """Judges each reply before anything of it is run or taken as the answer."""

    def __init__(self, limits: LoopLimits, *, answers: Answers, reply_tokens: int) -> None:
        self._limits = limits
        self._answers = answers
        self._reply_tokens = reply_tokens

    def after_model(self, run: Run, reply: Reply) -> None:
        fault = self._fault(run, reply)
        if fault is None or run.history.last.notices:
            return
        if fault == "repetition" and self._limits.observe:
            run.remark("loop detection (observing): the reply repeats itself")
            return
        in_a_row = 1 + _faults_before(run.history)
        if in_a_row >= self._limits.text_turns:
            self._stop(run, _end(fault, in_a_row))
        if not reply.calls or fault == "empty":
            answer = reply.text if fault == "code" else ""  # sent again it would be taken
            run.notify(self._told(fault, reply), f"reply:{fault}", answer)

    def _told(self, fault: str, reply: Reply) -> str:
        offered = self._answers.offered
        tools, why = ", ".join(offered.texts), self._answers.fault_of(reply)
        return notice(fault, tokens=self._reply_tokens, tools=tools, why=why)

    def _stop(self, run: Run, end: Stop) -> None:
        if not self._limits.observe:
            raise end
        run.remark(f"loop detection (observing): would stop: {end}")

    def before_tool(self, run: Run, call: ToolCall) -> None:
        """Nothing of a reply that was cut off may run: half a command is another command."""
        del call
        reply = run.history.last.reply
        if reply and reply.finish is not Finish.STOP:
            raise SkipCall(notice("cut_call"))

    def _fault(self, run: Run, reply: Reply) -> str | None:
        if reply.finish is not Finish.STOP:
            return "cut_reply"
        said = self._answers.said_in(reply)
        if reply.calls and not said:
            return None
        if self._answers.fault_of(reply):
            return "markup"
        if self._answers.is_blank(said[0]):
            return "empty"
        return None if reply.calls else self._fault_of_text(run, reply, said[0])

    def _fault_of_text(self, run: Run, reply: Reply, text: str) -> str | None:
        if repeats_itself(text) and not is_json(text):  # who has lost it closes no bracket
            return "repetition"
        if self._answers.offered.texts and is_promise(text):
            return "promise"
        if not is_only_code(text, self._answers.offered) or asks_for_code(run.job.goal):
            return None
        # asking again would only end the job: a recording, or one whose budget is spent
        if reply.is_last or is_spent(run.history, run.clock()):
            return None
        before = run.history.turns[-2].notices
        return None if any(n.reason == "reply:code" for n in before) else "code"


def is_promise(text: str) -> bool:
    """Whether a text says only what its writer is going to do (in English)."""
    text = _THOUGHT.sub("", text)
    if len(text) > _PROMISE_CHARS or _SPEAKS.search(text):
        return False
    sentences = [s for s in _SENTENCE_END.split(text.strip()) if not _FILLER.fullmatch(s)]
    return bool(sentences) and all(_PROMISE.match(sentence) for sentence in sentences)


def _faults_before(history: History) -> int:
    """How many replies directly before the last one were sent back."""
    count = 0
    for turn in islice(reversed(history.turns), 1, None):
        was_cut = turn.reply is not None and turn.reply.finish is not Finish.STOP
        if not was_cut and not any(n.reason.startswith("reply:") for n in turn.notices):
            break
        count += 1
    return count


def _end(fault: str, count: int) -> Stop:
    match fault:
        case "cut_reply":
            return Stop(
                f"{count} replies in a row were cut off (raise max_output_tokens)",
                kind="RepliesCutOff",
            )
        case "empty":
            return Stop(f"the model gave {count} empty replies in a row", kind="EmptyReplies")
    why = f"{count} replies in a row were neither a tool call nor an answer"
    return Stop(why, reason=FinishReason.LOOP, kind="LoopDetected")
