"""What the model is sent: the history, made to fit its window, and valid.

The system prompt and the goal always stay. What is cut, in this order: the text of old tool
results, whole steps (a reply together with the results of its calls), the middle of what is left.
A call and its result are never parted.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from worker.conversation import KEPT_CHARS, Conversation, Messages
from worker.errors import ContextTooLong, Stop
from worker.history import History
from worker.hooks import Run
from worker.messages import Message, Reply, Wire
from worker.models.base import TOKENS_PER_CHAR, Model, Request
from worker.prompts import notice

_log = logging.getLogger(__name__)
_TRIES = 4


def tokens_per_char(history: History) -> float:
    """How many tokens a character is, by what the endpoint last counted for a known request.

    Held near what is possible: an endpoint that cuts prompts without a word counts too few.
    """
    if (reply := history.counted) is None:
        return TOKENS_PER_CHAR
    measured = 1.05 * reply.usage.input_tokens / reply.request_chars
    return min(1.5, max(0.15, measured))


class Fitted(NamedTuple):
    """Messages that fit, and their size in characters."""

    messages: Messages
    chars: int


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
            request, chars = self._sized(run.history, tools, tokens)
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
        return self._sized(history, tools, tokens or self.tokens)[0]

    def _sized(self, history: History, tools: Sequence[Wire], tokens: int) -> tuple[Request, int]:
        """Build the next request; returns it with its size in characters."""
        room = max(tokens - min(self.reply_tokens, tokens // 3), tokens // 3)
        said = history.view(Conversation)
        said.grow(history)
        tools_chars = said.tools_chars(tools)
        fitted = fit(said, int(room / tokens_per_char(history)) - tools_chars)
        request = Request(
            messages=fitted.messages,
            tools=tuple(tools),
            max_output_tokens=min(self.reply_tokens, tokens // 3),
            turn=len(history.turns) - 1,
        )
        return request, fitted.chars + tools_chars

    def _check_usage(self, run: Run, reply: Reply, chars: int) -> None:
        """Say so when an endpoint must have cut the prompt: it counted far fewer tokens."""
        counted, least = reply.usage.input_tokens, int(chars * 0.12)
        if counted and counted < least and not _was_cut(run.history):
            run.remark(
                f"the endpoint counted {counted} tokens for a request of about {2 * least}: it "
                f"probably cut the prompt. Raise its window (Ollama: num_ctx in a Modelfile) or "
                f"set context_tokens to {counted}"
            )


def _was_cut(history: History) -> bool:
    return any(turn.reply and _is_cut(turn.reply) for turn in reversed(history.turns))


def _is_cut(reply: Reply) -> bool:
    return 0 < reply.usage.input_tokens < int(reply.request_chars * 0.12)


# ---- making it fit


def fit(said: Conversation, budget: int) -> Fitted:
    """Make a conversation fit into `budget` characters, as far as that is possible."""
    cleared = _first(said.most_cleared, budget, lambda n: said.chars(cleared=n))
    dropped = _first(len(said) - 1, budget, lambda n: said.chars(n, cleared))
    head, groups = said.head, said.groups(dropped, cleared)
    chars = said.chars(dropped, cleared)
    if dropped:
        head = _noted(head, notice("left_out", count=dropped))
        chars += len(head[-1].text) - len(said.head[-1].text)
    if chars > budget:
        chars -= _cut_largest(groups, chars - budget)
        full, head = head, _cut_goal(head, chars - budget)
        chars -= len(full[-1].text) - len(head[-1].text)
    return Fitted((*head, *chain.from_iterable(groups)), chars)


def _first(most: int, budget: int, chars: Callable[[int], int]) -> int:
    """The least number up to `most` with which the size is within the budget, else `most`.

    The size does not grow with the number.
    """
    return bisect_left(range(max(0, most)), -budget, key=lambda number: -chars(number))


def _noted(head: Messages, text: str) -> Messages:
    last = head[-1]
    return (*head[:-1], last.model_copy(update={"content": f"{last.text}\n\n{text}"}))


def _cut_largest(groups: list[Messages], excess: int) -> int:
    """Cut the middle out of the largest texts until `excess` characters are gone.

    Returns how many are gone.
    """
    sizes = [
        (len(message.text), i, j)
        for i, group in enumerate(groups)
        for j, message in enumerate(group)
        if len(message.text) > KEPT_CHARS
    ]
    left = excess
    for size, i, j in sorted(sizes, key=lambda found: -found[0]):
        if left <= 0:
            break
        after = _cut(groups[i][j], left)
        groups[i] = (*groups[i][:j], after, *groups[i][j + 1 :])
        left -= size - len(after.text)
    return excess - left


def _cut_goal(head: Messages, excess: int) -> Messages:
    """As the last resort: a goal larger than the window loses its middle, never its ends."""
    return (*head[:-1], _cut(head[-1], excess)) if excess > 0 else head


def _cut(message: Message, excess: int) -> Message:
    text = message.text
    keep = max(KEPT_CHARS, len(text) - excess - len(notice("cut", count=len(text))) - 8)
    if keep >= len(text):
        return message
    tail = keep // 3
    middle = notice("cut", count=len(text) - keep)
    cut = f"{text[: keep - tail]}\n{middle}\n{text[len(text) - tail :]}"
    return message.model_copy(update={"content": cut})
