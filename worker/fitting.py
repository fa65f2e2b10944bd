"""Making a conversation fit: what is cleared, left out and cut, and in which order.

1. The results of old steps lose their text.
2. In the latest steps, texts and arguments larger than a third of the room are cut: one of them
   must not drive out all that came before.
3. Whole steps are left out, the oldest first. (`worker.summing` has summed most of them up before.)
4. Whatever is still too large loses its middle, down to `KEPT_CHARS`; the goal comes last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from worker.conversation import KEPT_GROUPS, Conversation, Messages, noted
from worker.cutting import KEPT_CHARS, pieces_of, shortened, size_of
from worker.prompts import notice

_SHARE = 3  # the largest text in the latest steps is this part of the room


class Fitted(NamedTuple):
    """Messages that fit, and their size (see `worker.cutting.size_of`)."""

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

    It is possible where the system prompt, the goal and the last step fit once each of their texts
    and arguments, but for the system prompt, is cut to `KEPT_CHARS`.
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
    """The latest groups in which something is larger than `share`, with that cut to it."""
    found = {}
    for number in range(max(0, len(said) - KEPT_GROUPS), len(said)):
        whole = said.group(number).whole
        cut = tuple(shortened(message, share) for message in whole)
        saved = _size(whole) - _size(cut)
        if saved:
            found[number] = cut, saved
    return found


def _cut_to_level(groups: list[Messages], excess: int) -> int:
    """Cut all that is larger than some size to it, so that `excess` is gone if it can be.

    Returns how much is gone.
    """
    sizes = [size_of(piece) for g in groups for message in g for piece in pieces_of(message)]
    level = _level(sizes, excess)
    for number, group in enumerate(groups):
        groups[number] = tuple(shortened(message, level) for message in group)
    return sum(sizes) - sum(map(_size, groups))


def _size(messages: Messages) -> int:
    """The size of all that can be cut."""
    return sum(size_of(piece) for message in messages for piece in pieces_of(message))


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
