"""Replies that are neither a call nor an answer: empty, cut off, unreadable, stuck.

Each is sent back with what was wrong; three in a row end the job. When loops are only observed,
they do not, and a reply that repeats itself is taken as it is: what cannot be used is sent back
all the same.
"""

from __future__ import annotations

import re
from itertools import islice

from worker.errors import SkipCall, Stop
from worker.history import History
from worker.hooks import Hook, Run
from worker.messages import Finish, FinishReason, Reply, ToolCall
from worker.prompts import notice
from worker.repetition import repeats_itself
from worker.settings import LoopLimits

_MARKUP = re.compile(
    r"\A\s*(?:<(?:\|)?(?:tool_call|function_call|tool_calls|function=|invoke)|\[TOOL_CALLS\])"
    r"|<tool_call>[^<]*(?:</tool_call>\s*)?\Z"
)


class ReplyHook(Hook):
    """Judges each reply before anything of it is run or taken as the answer."""

    def __init__(
        self, limits: LoopLimits, *, tool_names: tuple[str, ...], reply_tokens: int
    ) -> None:
        self._limits = limits
        self._tool_names = tool_names
        self._reply_tokens = reply_tokens

    def after_model(self, run: Run, reply: Reply) -> None:
        fault = self._fault(reply)
        if fault is None or run.history.last.notices:
            return
        if fault == "repetition" and self._limits.observe:
            run.remark("loop detection (observing): the reply repeats itself")
            return
        in_a_row = 1 + _faults_before(run.history)
        if in_a_row >= self._limits.text_turns:
            self._stop(run, _end(fault, in_a_row))
        if not reply.calls:
            tools = ", ".join(self._tool_names)
            text = notice(fault, tokens=self._reply_tokens, tools=tools)
            run.notify(text, f"reply:{fault}")

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

    @staticmethod
    def _fault(reply: Reply) -> str | None:
        if reply.finish is not Finish.STOP:
            return "cut_reply"
        if reply.calls:
            return None
        if not reply.text:
            return "empty"
        if _MARKUP.search(reply.text):
            return "markup"
        return "repetition" if repeats_itself(reply.text) else None


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
