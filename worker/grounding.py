"""Answers about files before any of them was looked at: each such job is told so once.

Small models like to give an answer in the very form that was asked for, with a value that they
made up. The one thing that is certain about it is that no call was made, and that is enough: an
answer that needed no look at the files is given again, at the price of one reply.
"""

from __future__ import annotations

from worker.answers import Answers
from worker.history import History
from worker.hooks import Hook, Run
from worker.messages import Reply
from worker.prompts import notice

_REASON = "grounding:files"


class GroundingHook(Hook):
    """Sends the first answer back when the job has files and none of its calls has begun."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def after_model(self, run: Run, reply: Reply) -> None:
        history = run.history
        if history.tool_calls or history.last.notices or not has_files(history):
            return
        if not self._answers.said_in(reply):
            return
        if reply.is_last:  # asking a recording again would only end the job
            return
        if not any(n.reason == _REASON for turn in history.turns for n in turn.notices):
            run.notify(notice("ungrounded"), _REASON)


def has_files(history: History) -> bool:
    """Whether the first messages of the job show files or mounts."""
    told = history.opening[-1].text if history.opening else ""
    return notice("files") in told or notice("mounts") in told
