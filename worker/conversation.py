"""A job's history as the messages that a model is sent: one group for each step.

Only the last step of a history still changes. So what stands before it is made into messages,
measured and checked once, and the sums are kept: a step costs the same however many there were.
Steps that were summed up are not sent any more; the summary stands below the goal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from worker.cutting import KEPT_CHARS, size_of, with_short_calls
from worker.errors import RequestInvalid
from worker.history import History, Turn
from worker.messages import Message, Role, SummaryAdded, Wire
from worker.prompts import notice

_AROUND_MESSAGE = 48  # its role, ids and separators
_AROUND_CALL = 64
KEPT_GROUPS = 2  # the latest, whose results are not cleared, and which are not summed up
_FIRST_LINE = 200
_OLD_CALL = 2000  # characters of the arguments of a call whose result is cleared

Messages = tuple[Message, ...]


def chars_of(messages: Iterable[Message], tools: Sequence[Wire] = ()) -> int:
    """The size of a request (see `size_of`): texts, and a guess for what is around them."""
    schemas = sum(size_of(json.dumps(tool, ensure_ascii=False)) for tool in tools)
    return schemas + sum(map(_chars, messages))


def _chars(message: Message) -> int:
    calls = sum(
        size_of(call.name) + size_of(call.arguments) + _AROUND_CALL for call in message.tool_calls
    )
    return size_of(message.text) + calls + _AROUND_MESSAGE


@dataclass(frozen=True, slots=True)
class Group:
    """A reply, its results and notices; whole, and with its results cleared and calls cut."""

    whole: Messages
    cleared: Messages
    chars: int
    cleared_chars: int

    @classmethod
    def of(cls, turn: Turn) -> Group:
        whole = _messages(turn)
        cleared = tuple(map(_cleared, whole))
        return cls(whole, cleared, chars_of(whole), chars_of(cleared))


class Conversation:
    """A view of a history (`History.view`). Raises `RequestInvalid` for one that cannot be sent."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._sums = [0]  # characters of the first n groups
        self._cleared_sums = [0]
        self._ids: set[str] = set()  # of calls in all groups but the last
        self._extent = (0, 0)  # of the turn in the last group
        self._head_extent = (-1, 0, 0)  # not even an empty one was made
        self._tools: Sequence[Wire] = ()
        self._tools_chars = 0
        self.head: Messages = ()
        self.summed_up = 0  # so many of the oldest groups are not sent any more
        self._head_chars = 0

    def __len__(self) -> int:
        return len(self._groups)

    def grow(self, history: History) -> None:
        """Take in what has happened since the last time."""
        opening, turns = history.opening, history.turns
        summed_up = history.summary.steps if history.summary else 0
        extent = len(opening), len(turns[0].notices), summed_up
        if extent != self._head_extent:
            head = tuple(_joined([*opening, *_notices(turns[0])]))
            check_request(head)
            self.head = noted(head, _told(history.summary)) if history.summary else head
            self._head_chars, self._head_extent = chars_of(self.head), extent
            self.summed_up = summed_up
        if self._groups and _extent(turns[len(self)]) != self._extent:
            del self._groups[-1], self._sums[-1], self._cleared_sums[-1]
        for turn in turns[len(self) + 1 :]:
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        group = Group.of(turn)
        self._check(group)
        self._groups.append(group)
        self._sums.append(self._sums[-1] + group.chars)
        self._cleared_sums.append(self._cleared_sums[-1] + group.cleared_chars)
        self._extent = _extent(turn)

    def _check(self, group: Group) -> None:
        check_request((*self.head, *group.whole))
        if self._groups:
            before = self._groups[-1].whole
            self._ids.update(call.id for call in before[0].tool_calls)
            _check_order(before[-1], group.whole[0], {})
        for call in group.whole[0].tool_calls:
            if call.id in self._ids:
                raise RequestInvalid(f"call id {call.id} is there twice")

    @property
    def most_cleared(self) -> int:
        """How many of the oldest groups may be cleared."""
        return max(0, len(self._groups) - KEPT_GROUPS)

    @property
    def head_chars(self) -> int:
        """The size of what is always sent."""
        return self._head_chars

    def group(self, number: int) -> Group:
        """The group of that number, from 0."""
        return self._groups[number]

    def chars(self, dropped: int = 0, cleared: int = 0) -> int:
        """Its size without the oldest groups, and with those cleared that come next."""
        dropped = max(dropped, self.summed_up)
        cleared = max(dropped, cleared)
        sums, cleared_sums = self._sums, self._cleared_sums
        short = cleared_sums[cleared] - cleared_sums[dropped]
        return self._head_chars + short + sums[-1] - sums[cleared]

    def groups(self, dropped: int = 0, cleared: int = 0) -> list[Messages]:
        """All groups but the oldest, with those cleared that come next."""
        dropped = max(dropped, self.summed_up)
        cleared = max(dropped, cleared)
        short = [group.cleared for group in self._groups[dropped:cleared]]
        return short + [group.whole for group in self._groups[cleared:]]

    def tools_chars(self, tools: Sequence[Wire]) -> int:
        """The size of the tools in a request."""
        if self._tools != tools:
            self._tools, self._tools_chars = tools, chars_of((), tools)
        return self._tools_chars


def _extent(turn: Turn) -> tuple[int, int]:
    """What changes whenever the turn does."""
    return len(turn.results), len(turn.notices)


def _messages(turn: Turn) -> Messages:
    reply = turn.reply.message if turn.reply else Message(role=Role.ASSISTANT)
    if not reply.text.strip() and not reply.tool_calls:
        reply = reply.model_copy(update={"content": "(empty)"})  # some endpoints refuse none
    results = [turn.results[call.id].to_message() for call in turn.calls]
    return tuple(_joined([reply, *results, *_notices(turn)]))


def _told(summary: SummaryAdded) -> str:
    return notice("summary", count=summary.steps, text=summary.text)


def noted(head: Messages, text: str) -> Messages:
    """Put a text below the goal."""
    last = head[-1]
    return (*head[:-1], last.model_copy(update={"content": f"{last.text}\n\n{text}"}))


def _notices(turn: Turn) -> list[Message]:
    return [Message(role=Role.USER, content=n.text) for n in turn.notices]


def _joined(messages: list[Message]) -> list[Message]:
    """Put what we say behind the tool result or user message before it.

    Many chat templates refuse two user messages in a row, or a user between tool and assistant.
    """
    out: list[Message] = []
    for message in messages:
        if message.role is Role.USER and out and out[-1].role in {Role.USER, Role.TOOL}:
            text = f"{out[-1].text}\n\n{message.text}"
            out[-1] = out[-1].model_copy(update={"content": text})
        else:
            out.append(message)
    return out


def _cleared(message: Message) -> Message:
    if message.tool_calls:
        return with_short_calls(message, _OLD_CALL)
    text = message.text
    if message.role is not Role.TOOL or len(text) <= KEPT_CHARS:
        return message
    first = text[:_FIRST_LINE].splitlines()[0]
    return message.model_copy(update={"content": f"{first}\n{notice('cleared')}"})


# ---- the last look before it leaves


def check_request(messages: Sequence[Message]) -> None:
    """Raise `RequestInvalid` for what endpoints refuse: roles out of order, orphans, doubles."""
    roles = [message.role for message in messages]
    if Role.SYSTEM in roles[1:] or roles[:2] != [Role.SYSTEM, Role.USER]:
        raise RequestInvalid("a request starts with one system message and the goal")
    open_ids: dict[str, None] = {}
    seen: set[str] = set()
    for before, message in pairwise(messages[1:]):
        _check_order(before, message, open_ids)
        for call in message.tool_calls:
            if call.id in seen:
                raise RequestInvalid(f"call id {call.id} is there twice")
            seen.add(call.id)
            open_ids[call.id] = None
    if open_ids:
        raise RequestInvalid(f"call {next(iter(open_ids))} has no result")


def _check_order(before: Message, message: Message, open_ids: dict[str, None]) -> None:
    if message.role is Role.TOOL:
        if message.tool_call_id not in open_ids:
            raise RequestInvalid(f"result without a call: {message.tool_call_id}")
        del open_ids[message.tool_call_id]
    elif open_ids:
        first = next(iter(open_ids))
        raise RequestInvalid(f"call {first} has no result before the next {message.role}")
    elif message.role is before.role:
        raise RequestInvalid(f"two messages of {message.role} in a row")
