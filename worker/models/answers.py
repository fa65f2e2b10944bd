"""Read what an endpoint answers, whole or in pieces, and never more than can be a reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import httpx2

from worker.errors import ModelUnavailable
from worker.models.streaming import Pulse, assembled, chunks, read_json
from worker.relaxed import levels_of

MOST_BYTES = 64 * 1024 * 1024  # on the wire, where a piece of a few letters takes hundreds
MOST_CHARS = 1_000_000  # twice what models can write; each of them is read a dozen times
_MIB = 1024 * 1024
_PER_OBJECT = 64  # characters, for what a call costs beside its texts
_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")


class TooLarge(ModelUnavailable):
    """More came than any model writes, and more would come of asking again."""


def read_answer(response: httpx2.Response, pulse: Pulse, most_bytes: int = MOST_BYTES) -> Any:  # noqa: ANN401 - whatever came
    """The JSON of an answer, a stream's put together; the text of one that is neither.

    What it is shows in how it begins: some endpoints stream though they were not asked to, some do
    not though they were. Raises `Broken`, `TooLarge`, and what the connection raises.
    """
    parts = _bounded(response.iter_bytes(), pulse, most_bytes)
    start = _start(parts)
    body = chain([start], parts)
    is_stream = "event-stream" in response.headers.get("content-type", "")
    if start.startswith(_EVENTS) or (is_stream and not start.startswith(b"{")):
        return _bounded_answer(assembled(chunks(_lines(body))))
    text = b"".join(body).decode("utf-8-sig", "replace")
    try:
        answer = read_json(text)
    except ValueError:
        return text
    return _bounded_answer(answer)


def _bounded(parts: Iterable[bytes], pulse: Pulse, most_bytes: int) -> Iterator[bytes]:
    left = most_bytes
    for part in parts:
        pulse.beat()
        left -= len(part)
        if left < 0:
            raise TooLarge(f"a reply of more than {most_bytes / _MIB:.3g} MiB")
        yield part


def _bounded_answer(answer: Any) -> Any:  # noqa: ANN401 - whatever came
    """The answer. Raises `TooLarge` for one with more in it than can be a reply."""
    if sum(map(_size, chain.from_iterable(levels_of(answer)))) > MOST_CHARS:
        raise TooLarge(f"a reply of more than {MOST_CHARS:,} characters")
    return answer


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    return _PER_OBJECT if isinstance(value, dict) else 1


def _start(parts: Iterator[bytes]) -> bytes:
    """The first part with anything in it; servers that keep a line open send blanks before."""
    for part in parts:
        if part := part.lstrip():
            return part
    return b""


def _lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Lines as they end on the wire; texts have other line ends in them."""
    rest: list[bytes] = []
    for part in parts:
        first, *more = part.split(b"\n")
        rest.append(first)
        for line in more:
            yield _line(rest)
            rest = [line]
    if any(rest):
        yield _line(rest)


def _line(parts: list[bytes]) -> str:
    return b"".join(parts).removesuffix(b"\r").decode("utf-8", "replace")
