"""Summaries: what old steps come to, in the place of the steps themselves.

When steps would have to be left out, a model sums up the oldest of them, with the summary that
there is already: so many that about half of the room is free again, and the next summary is far
off. It is stored, because it is paid for: a job that goes on elsewhere uses it. One that fails, or
is worth nothing, is stored as well, and tried again later, three times in all; meanwhile steps are
left out without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from worker.answers import is_markup
from worker.conversation import KEPT_GROUPS, Conversation, Group
from worker.cutting import cut, size_of
from worker.errors import ModelUnavailable
from worker.fitting import first, plan
from worker.history import History
from worker.hooks import Run
from worker.messages import Message, Reply, Role, SummaryAdded
from worker.models.base import Model, Request
from worker.prompts import notice, text
from worker.repetition import repeats_itself

_LEAST_STEPS = 3  # that are worth a request
_PART = 5  # a summary takes this part of the room at most
_LEAST_CHARS = 600  # that it may have
_MOST_CHARS = 8000
_FAILURES = 3  # in a row, after which no more is tried
_PAUSE = 4  # steps, for each of them
_LEAST_PIECE = 200  # characters of what is summed up


class Room(NamedTuple):
    """What there is room for: characters of a request, of messages in it, tokens of a reply."""

    request_chars: int
    chars: int
    reply_tokens: int

    @property
    def summary_chars(self) -> int:
        return min(_MOST_CHARS, max(_LEAST_CHARS, self.chars // _PART))


def sum_up(run: Run, model: Model, room: Room, timeout_s: float) -> None:
    """Sum up the oldest steps if they do not fit into the room, and if that was not just tried.

    Raises `Cancelled`. What else goes wrong is stored, and said to people the first time.
    """
    history = run.history
    said = history.view(Conversation)
    until = _until(said, room) if _is_due(history) else 0
    if not until:
        return
    is_first = history.last_failed == 0
    summary = _attempt(run, model, room, until, timeout_s)
    run.append(summary)
    if summary.fault and is_first:
        why = f"old steps are left out without a summary: {summary.fault}"
        run.remark(f"{why} (summaries, summariser_model)")


def _is_due(history: History) -> bool:
    failures = history.failed_summaries
    waits = failures and len(history.turns) < history.last_failed + _PAUSE * failures
    return failures < _FAILURES and not waits


def _until(said: Conversation, room: Room) -> int:
    """How many of the oldest steps the next summary is to stand for; 0: none is needed."""
    how = plan(said, room.chars)
    has_room = room.chars > said.head_chars + _LEAST_CHARS
    if how.dropped <= said.summed_up or not has_room:
        return 0
    free = (room.chars + said.head_chars) // 2
    most = len(said) - KEPT_GROUPS
    until = first(most, free, lambda n: said.chars(n, said.most_cleared) - how.saved(n))
    return until if until >= said.summed_up + _LEAST_STEPS else 0


def _attempt(run: Run, model: Model, room: Room, until: int, timeout_s: float) -> SummaryAdded:
    said = run.history.view(Conversation)
    turn = len(run.history.turns) - 1
    request = _request(run.history, said, room, until, turn)
    try:
        reply = model.reply(request, timeout_s=max(0.0, timeout_s), is_cancelled=run.is_cancelled)
    except ModelUnavailable as error:
        return SummaryAdded(steps=until, fault=str(error) or type(error).__name__, model=model.name)
    replaced = said.chars(0, said.most_cleared) - said.chars(until, said.most_cleared)
    if run.history.summary:
        replaced += size_of(run.history.summary.text)
    fault = _fault(reply, replaced)
    return SummaryAdded(
        text="" if fault else cut(reply.text, room.summary_chars),
        steps=until,
        usage=reply.usage,
        model=reply.model or model.name,
        fault=fault,
    )


def _fault(reply: Reply, replaced: int) -> str:
    """Why a reply is no summary; empty if it is one."""
    if reply.calls:
        return "the summary was a tool call"
    if is_markup(reply.text):
        return "the summary was empty"
    if repeats_itself(reply.text):
        return "the summary repeats itself"
    if (chars := size_of(reply.text)) >= replaced:
        return f"the summary ({chars} characters) was no shorter than the steps ({replaced})"
    return ""


# ---- what is to be summed up


def _request(history: History, said: Conversation, room: Room, until: int, turn: int) -> Request:
    words = room.summary_chars // 8
    prompt = text("summary.md").replace("{words}", str(words))
    most = (room.request_chars - size_of(prompt)) * 9 // 10 >> history.failed_summaries
    system = Message(role=Role.SYSTEM, content=prompt)
    told = cut("\n\n".join(_pieces(history, said, until, most)), most)
    user = Message(role=Role.USER, content=told)
    return Request(
        messages=(system, user), max_output_tokens=room.reply_tokens, turn=turn, is_summary=True
    )


def _pieces(history: History, said: Conversation, until: int, most: int) -> Iterator[str]:
    """The goal, the former summary and the steps, each cut to its share of the characters."""
    yield f"{notice('summary_goal')}\n{cut(history.opening[-1].text, most // 8)}"
    if history.summary:
        yield f"{notice('summary_former')}\n{history.summary.text}"
        most -= size_of(history.summary.text)
    steps = range(said.summed_up, until)
    share = max(_LEAST_PIECE, most * 7 // 8 // len(steps))
    for number in steps:
        yield f"{notice('summary_step', number=number + 1)}\n{_step(said.group(number), share)}"


def _step(group: Group, share: int) -> str:
    said = [_said(message) for message in group.whole]
    return "\n".join(cut(piece, max(_LEAST_PIECE, share // len(said))) for piece in said)


def _said(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([f"[{message.role}] {message.text}".rstrip(), *calls])
