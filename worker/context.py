"""What the model is sent: the history, made to fit its window, and valid.

The system prompt and the goal always stay. What is cut, in this order: the text of old tool
results, whole steps (a reply together with the results of its calls), the middle of what is left.
A call and its result are never parted.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from worker.errors import ContextTooLong, RequestInvalid, Stop
from worker.history import History, Turn
from worker.hooks import Run
from worker.messages import Message, Reply, Role, Wire
from worker.models.base import TOKENS_PER_CHAR, Model, Request
from worker.prompts import notice

_log = logging.getLogger(__name__)
_AROUND_MESSAGE = 48  # its role, ids and separators
_AROUND_CALL = 64
_KEPT_CHARS = 400  # of a message that is cut
_KEPT_GROUPS = 2  # the latest, whose results are not cleared
_TRIES = 4


def groups_of(history: History) -> tuple[list[Message], list[list[Message]]]:
    """The opening, and one group of messages for each step: the reply, its results, notices."""
    head = _joined([*history.opening, *_notices(history.turns[0])])
    return head, [_group(turn) for turn in history.steps]


def _group(turn: Turn) -> list[Message]:
    reply = turn.reply.message if turn.reply else Message(role=Role.ASSISTANT)
    if not reply.text.strip() and not reply.tool_calls:
        reply = reply.model_copy(update={"content": "(empty)"})  # some endpoints refuse none
    results = [turn.results[call.id].to_message() for call in turn.calls]
    return _joined([reply, *results, *_notices(turn)])


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


def chars_of(messages: Iterable[Message], tools: Sequence[Wire] = ()) -> int:
    """The size of a request, in characters: texts, and a guess for what is around them."""
    schemas = sum(len(json.dumps(tool, ensure_ascii=False)) for tool in tools)
    return schemas + sum(map(_chars, messages))


def _chars(message: Message) -> int:
    calls = sum(len(c.name) + len(c.arguments) + _AROUND_CALL for c in message.tool_calls)
    return len(message.text) + calls + _AROUND_MESSAGE


def tokens_per_char(history: History) -> float:
    """How many tokens a character is, by what the endpoint last counted for a known request.

    Held near what is possible: an endpoint that cuts prompts without a word counts too few.
    """
    for turn in reversed(history.steps):
        reply = turn.reply
        if reply and reply.request_chars and reply.usage.input_tokens:
            measured = 1.05 * reply.usage.input_tokens / reply.request_chars
            return min(1.5, max(0.15, measured))
    return TOKENS_PER_CHAR


@dataclass(frozen=True, slots=True)
class Window:
    """The model's window in tokens, and how much of it a reply may take."""

    tokens: int = 32_768
    reply_tokens: int = 4096

    def ask(self, run: Run, model: Model, tools: Sequence[Wire], timeout_s: float) -> Reply:
        """Ask `model` with as much of the history as fits.

        An endpoint that finds the request too long makes it shorter a few times, then ends the
        job (`Stop`) with the numbers; all of that within `timeout_s`. Raises what `Model.reply`
        raises.
        """
        tokens, sent = self.tokens, 0
        deadline = time.monotonic() + timeout_s
        for _ in range(_TRIES):
            request = self.request(run.history, tools, tokens)
            chars = chars_of(request.messages, tools)
            left_s = max(0.0, deadline - time.monotonic())
            try:
                reply = model.reply(request, timeout_s=left_s, is_cancelled=run.is_cancelled)
            except ContextTooLong as error:
                _log.warning("request of %d characters is too long: %s", chars, error)
                if chars == sent:
                    break
                tokens, sent = min(error.window or tokens, tokens) * 2 // 3, chars
            else:
                self._check_usage(run, reply, chars)
                return reply.model_copy(update={"request_chars": chars})
        raise Stop(
            f"the context cannot be made small enough: {sent} characters were refused, with a "
            f"window of {self.tokens} tokens (context_tokens)",
            kind="ContextTooSmall",
        )

    def request(
        self, history: History, tools: Sequence[Wire], tokens: int | None = None
    ) -> Request:
        """Build the next request; raises `RequestInvalid` if it is not one (a fault of ours)."""
        tokens = tokens or self.tokens
        room = max(tokens - min(self.reply_tokens, tokens // 3), tokens // 3)
        budget = int(room / tokens_per_char(history)) - chars_of((), tools)
        head, groups = groups_of(history)
        messages = fit(head, groups, budget)
        check_request(messages)
        return Request(
            messages=messages,
            tools=tuple(tools),
            max_output_tokens=min(self.reply_tokens, tokens // 3),
            turn=len(history.steps),
        )

    def _check_usage(self, run: Run, reply: Reply, chars: int) -> None:
        """Say so when an endpoint must have cut the prompt: it counted far fewer tokens."""
        counted, least = reply.usage.input_tokens, int(chars * 0.12)
        warned = any(t.reply and _is_cut(t.reply) for t in run.history.steps)
        if counted and counted < least and not warned:
            run.remark(
                f"the endpoint counted {counted} tokens for a request of about {2 * least}: it "
                f"probably cut the prompt. Raise its window (Ollama: num_ctx in a Modelfile) or "
                f"set context_tokens to {counted}"
            )


def _is_cut(reply: Reply) -> bool:
    return 0 < reply.usage.input_tokens < int(reply.request_chars * 0.12)


# ---- making it fit


def fit(head: list[Message], groups: list[list[Message]], budget: int) -> tuple[Message, ...]:
    """Make the messages fit into `budget` characters, as far as that is possible."""
    groups = [list(group) for group in groups]
    sizes = [chars_of(group) for group in groups]
    total = chars_of(head) + sum(sizes)
    for i, group in enumerate(groups[:-_KEPT_GROUPS]):
        if total <= budget:
            break
        groups[i] = [_cleared(message) for message in group]
        total -= sizes[i] - (size := chars_of(groups[i]))
        sizes[i] = size
    dropped = 0
    while dropped < len(groups) - 1 and total > budget:
        total -= sizes[dropped]
        dropped += 1
    if dropped:
        groups = groups[dropped:]
        head = _noted(head, notice("left_out", count=dropped))
    return _squeezed(head, groups, budget)


def _squeezed(head: list[Message], groups: list[list[Message]], budget: int) -> tuple[Message, ...]:
    """Cut the middle out of what is still too large: results first, the goal last."""
    excess = _size(head, groups) - budget
    if excess > 0:
        groups = _cut_largest(groups, excess)
        head = _cut_goal(head, _size(head, groups) - budget)
    return (*head, *(message for group in groups for message in group))


def _size(head: list[Message], groups: list[list[Message]]) -> int:
    return chars_of(head) + sum(chars_of(group) for group in groups)


def _cleared(message: Message) -> Message:
    if message.role is not Role.TOOL or len(message.text) <= _KEPT_CHARS:
        return message
    first = message.text.splitlines()[0][:200]
    return message.model_copy(update={"content": f"{first}\n{notice('cleared')}"})


def _noted(head: list[Message], text: str) -> list[Message]:
    last = head[-1]
    return [*head[:-1], last.model_copy(update={"content": f"{last.text}\n\n{text}"})]


def _cut_largest(groups: list[list[Message]], excess: int) -> list[list[Message]]:
    """Cut the middle out of the largest texts until `excess` characters are gone."""
    groups = [list(group) for group in groups]
    places = [(i, j) for i, group in enumerate(groups) for j in range(len(group))]
    for i, j in sorted(places, key=lambda p: -len(groups[p[0]][p[1]].text)):
        if excess <= 0:
            break
        before = groups[i][j]
        after = _cut(before, excess)
        groups[i][j] = after
        excess -= chars_of([before]) - chars_of([after])
    return groups


def _cut_goal(head: list[Message], excess: int) -> list[Message]:
    """As the last resort: a goal larger than the window loses its middle, never its ends."""
    return [*head[:-1], _cut(head[-1], excess)] if excess > 0 else head


def _cut(message: Message, excess: int) -> Message:
    text = message.text
    keep = max(_KEPT_CHARS, len(text) - excess - len(notice("cut", count=len(text))) - 8)
    if keep >= len(text):
        return message
    tail = keep // 3
    middle = notice("cut", count=len(text) - keep)
    cut = f"{text[: keep - tail]}\n{middle}\n{text[len(text) - tail :]}"
    return message.model_copy(update={"content": cut})


# ---- the last look before it leaves


def check_request(messages: Sequence[Message]) -> None:
    """Raise `RequestInvalid` for what endpoints refuse: roles out of order, orphans, doubles."""
    roles = [message.role for message in messages]
    if Role.SYSTEM in roles[1:] or roles[:2] != [Role.SYSTEM, Role.USER]:
        raise RequestInvalid("a request starts with one system message and the goal")
    open_ids: list[str] = []
    seen: set[str] = set()
    for before, message in pairwise(messages[1:]):
        _check_order(before, message, open_ids)
        for call in message.tool_calls:
            if call.id in seen:
                raise RequestInvalid(f"call id {call.id} is there twice")
            seen.add(call.id)
            open_ids.append(call.id)
    if open_ids:
        raise RequestInvalid(f"call {open_ids[0]} has no result")


def _check_order(before: Message, message: Message, open_ids: list[str]) -> None:
    if message.role is Role.TOOL:
        if message.tool_call_id not in open_ids:
            raise RequestInvalid(f"result without a call: {message.tool_call_id}")
        open_ids.remove(message.tool_call_id)
    elif open_ids:
        raise RequestInvalid(f"call {open_ids[0]} has no result before the next {message.role}")
    elif message.role is before.role:
        raise RequestInvalid(f"two messages of {message.role} in a row")
