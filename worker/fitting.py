"""Making a conversation fit: what is cleared, left out and cut, and in which order.

1. The results of old steps lose their text.
2. In the latest steps, texts larger than a third of the room are cut: one of them must not drive
   out all that came before.
3. Whole steps are left out, the oldest first. (`worker.summing` has summed most of them up before.)
4. Whatever is still too large loses its middle, down to `KEPT_CHARS`; the goal comes last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from worker.conversation import KEPT_CHARS, KEPT_GROUPS, Conversation, Messages, noted, size_of
from worker.messages import Message
from worker.prompts import notice

_SHARE = 3  # the largest text in the latest steps is this part of the room


class Fitted(NamedTuple):
    """Messages that fit, and their size (see `worker.conversation.size_of`)."""

    messages: Messages
    chars: int


class Plan(NamedTuple):
    """How a conversation is made to fit: so many groups cleared, so many left out, these cut."""

    cleared: int
    dropped: int
    cut: dict[int, tuple[Messages, int]]  # by the number of the group, with what it saves

    def saved(self, dropped: int) -> int:
        """What cutting saves where so many groups are left out."""
        return sum(saved for number, (_, saved) in self.cut.items() if number >= dropped)


def plan(said: Conversation, budget: int) -> Plan:
    """What must be done so that a conversation fits into `budget` characters, if anything."""
    cleared = first(said.most_cleared, budget, lambda n: said.chars(cleared=n))
    made = Plan(cleared, 0, {})
    if said.chars(cleared=cleared) > budget:
        made = made._replace(cut=_oversized(said, max(KEPT_CHARS, budget // _SHARE)))

    def size(dropped: int) -> int:
        is_noted = dropped > said.summed_up
        noted_chars = size_of(notice("left_out", count=len(said))) + 2 if is_noted else 0
        return said.chars(dropped, cleared) - made.saved(dropped) + noted_chars

    return made._replace(dropped=first(len(said) - 1, budget, size))


def fit(said: Conversation, budget: int) -> Fitted:
    """Make a conversation fit into `budget` characters, as far as that is possible.

    It is possible where the system prompt, the goal and the last step fit once each of their texts,
    but for the system prompt, is cut to `KEPT_CHARS`. The text of calls is never cut.
    """
    how = plan(said, budget)
    dropped = max(how.dropped, said.summed_up)
    head, groups = said.head, said.groups(dropped, how.cleared)
    chars = said.chars(dropped, how.cleared) - how.saved(dropped)
    if left_out := dropped - said.summed_up:
        head = noted(head, notice("left_out", count=left_out))
        chars += size_of(head[-1].text) - size_of(said.head[-1].text)
    if chars <= budget:
        for number, (cut, _) in how.cut.items():
            if number >= dropped:
                groups[number - dropped] = cut
    else:
        chars += how.saved(dropped)
        chars -= _cut_to_level(groups, chars - budget)
        full, head = head, _cut_goal(head, chars - budget)
        chars -= size_of(full[-1].text) - size_of(head[-1].text)
    return Fitted((*head, *chain.from_iterable(groups)), chars)


def first(most: int, budget: int, chars: Callable[[int], int]) -> int:
    """The least number up to `most` with which the size is within the budget, else `most`.

    The size does not grow with the number.
    """
    return bisect_left(range(max(0, most)), -budget, key=lambda number: -chars(number))


def _oversized(said: Conversation, share: int) -> dict[int, tuple[Messages, int]]:
    """The latest groups in which a text is larger than `share`, with those texts cut to it."""
    found = {}
    for number in range(max(0, len(said) - KEPT_GROUPS), len(said)):
        whole = said.group(number).whole
        cut = tuple(shortened(message, share) for message in whole)
        saved = sum(size_of(m.text) - size_of(c.text) for m, c in zip(whole, cut, strict=True))
        if saved:
            found[number] = cut, saved
    return found


def _cut_to_level(groups: list[Messages], excess: int) -> int:
    """Cut all texts that are larger than some size to it, so that `excess` is gone if it can be.

    Returns how much is gone.
    """
    sizes = [size_of(message.text) for group in groups for message in group]
    level = _level(sizes, excess)
    before = sum(sizes)
    for number, group in enumerate(groups):
        groups[number] = tuple(shortened(message, level) for message in group)
    return before - sum(size_of(message.text) for group in groups for message in group)


def _level(sizes: Sequence[int], excess: int) -> int:
    """The largest size to which texts of these sizes must be cut to be `excess` smaller."""
    highest = max(sizes, default=0)

    def over(count: int) -> int:
        """What is left of the excess when all are cut to `count` below the highest."""
        return excess - sum(max(0, size - (highest - count)) for size in sizes)

    return max(KEPT_CHARS, highest - first(highest, 0, over))


def _cut_goal(head: Messages, excess: int) -> Messages:
    """As the last resort: a goal larger than the window loses its middle, never its ends."""
    if excess <= 0:
        return head
    return (*head[:-1], shortened(head[-1], size_of(head[-1].text) - excess))


def shortened(message: Message, most: int) -> Message:
    """The message with a text no larger than `most` (or what of `KEPT_CHARS` a cut leaves)."""
    text = cut(message.text, most)
    return message if text is message.text else message.model_copy(update={"content": text})


def cut(text: str, most: int) -> str:
    """Take the middle out of a text that is larger than `most`; two thirds of the rest begin it."""
    size = size_of(text)
    if size <= most:
        return text
    keep = max(KEPT_CHARS, most) - size_of(notice("cut", count=len(text))) - 2  # its line ends
    begin = text[: _prefix(text, keep - keep // 3)]
    end = text[len(text) - _prefix(text[::-1], keep // 3) :]
    middle = notice("cut", count=len(text) - len(begin) - len(end))
    made = f"{begin}\n{middle}\n{end}"
    return made if size_of(made) < size else text


def _prefix(text: str, size: int) -> int:
    """How many characters of a text are no larger than `size`."""
    if text.isascii():
        return min(len(text), size)
    return max(0, bisect_left(range(len(text) + 1), size + 1, key=lambda n: size_of(text[:n])) - 1)
