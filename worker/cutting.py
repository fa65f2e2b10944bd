"""How large a text is, and what is left of one that is too large: its two ends.

A call stays a call: of its arguments only the texts lose their middle, so that they are still the
JSON object that endpoints and chat templates read. Where that is not enough (numbers by the
thousand, or what was no JSON to begin with), one text stands for all of them. Only what is sent is
cut; what is stored stays whole.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid
from worker.messages import Message
from worker.prompts import notice

KEPT_CHARS = 400  # of a text that is cut
_LEAST_CHARS = 60  # of a text in arguments, when there is no other way


def size_of(text: str) -> int:
    """The size of a text in characters, of which those beyond ASCII count twice.

    They take about twice the tokens, in most scripts and with most tokenizers.
    """
    if text.isascii():
        return len(text)
    return 2 * len(text) - len(text.encode("ascii", "ignore"))


def shortened(message: Message, most: int) -> Message:
    """The message with no text, and no arguments, larger than `most` (or `KEPT_CHARS`)."""
    text = cut(message.text, most)
    if text is not message.text:
        message = message.model_copy(update={"content": text})
    return with_short_calls(message, most)


def with_short_calls(message: Message, most: int) -> Message:
    """The message with no arguments larger than `most` (or `KEPT_CHARS`)."""
    if all(size_of(call.arguments) <= most for call in message.tool_calls):
        return message
    calls = tuple(
        call.model_copy(update={"arguments": cut_arguments(call.arguments, most)})
        for call in message.tool_calls
    )
    return message.model_copy(update={"tool_calls": calls})


def pieces_of(message: Message) -> Iterator[str]:
    """What of a message can be cut: its text, and the arguments of each call."""
    yield message.text
    yield from (call.arguments for call in message.tool_calls)


def cut(text: str, most: int) -> str:
    """Take the middle out of a text that is larger than `most`; two thirds of the rest begin it."""
    return _cut(text, max(KEPT_CHARS, most)) if size_of(text) > most else text


def cut_arguments(text: str, most: int) -> str:
    """The arguments of a call, made no larger than `most` (or `KEPT_CHARS`), as a JSON object."""
    most = max(KEPT_CHARS, most)
    return _shorter(text, most) if size_of(text) > most else text


@lru_cache(maxsize=64)  # while a call is one of the latest, it is cut again for each request
def _shorter(text: str, most: int) -> str:
    given = _read(text)
    made = _largest(most, lambda n: _written(_cut_texts(given, n))) if given else text
    if size_of(made) <= most:
        return made
    return _largest(most, lambda n: _written({"cut": _cut(text, n)}))


def _read(text: str) -> dict[str, Any] | None:
    try:
        return read_arguments(text)[0]
    except ArgumentsInvalid:
        return None


def _written(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _cut_texts(value: Any, most: int) -> Any:  # noqa: ANN401 - JSON
    """The same value, in which no text is larger than `most`."""
    if isinstance(value, str):
        return _cut(value, most) if size_of(value) > most else value
    if isinstance(value, dict):
        return {key: _cut_texts(part, most) for key, part in value.items()}
    if isinstance(value, list):
        return [_cut_texts(part, most) for part in value]
    return value


def _largest(most: int, make: Callable[[int], str]) -> str:
    """What is made with the largest size with which it is no larger than `most`, else the least.

    Escapes make a text in JSON larger than it is.
    """
    least = make(_LEAST_CHARS)
    if size_of(least) > most:
        return least
    sizes = range(_LEAST_CHARS, most + 1)
    return make(sizes[bisect_right(sizes, most, key=lambda size: size_of(make(size))) - 1])


def _cut(text: str, most: int) -> str:
    keep = max(0, most - size_of(notice("cut", count=len(text))) - 2)  # its line ends
    begin = text[: _prefix(text, keep - keep // 3)]
    end = text[len(text) - _prefix(text[: -keep - 1 : -1], keep // 3) :]
    middle = notice("cut", count=len(text) - len(begin) - len(end))
    made = f"{begin}\n{middle}\n{end}"
    return made if size_of(made) < size_of(text) else text


def _prefix(text: str, size: int) -> int:
    """How many characters of a text are no larger than `size`."""
    if text.isascii():
        return min(len(text), size)
    lengths = range(min(len(text), size) + 1)
    return max(0, bisect_left(lengths, size + 1, key=lambda n: size_of(text[:n])) - 1)
