"""Read what an endpoint answers, whole or in pieces, and never more than can be a reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import httpx2

from worker.models.streaming import Broken, Pulse, assembled, chunks, read_json

MOST_BYTES = 64 * 1024 * 1024
_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")


def read_answer(response: httpx2.Response, pulse: Pulse, most_bytes: int = MOST_BYTES) -> Any:  # noqa: ANN401 - whatever came
    """The JSON of an answer, a stream's put together; the text of one that is neither.

    What it is shows in how it begins: some endpoints stream though they were not asked to, some do
    not though they were. Raises `Broken`, and what the connection raises.
    """
    parts = _bounded(response.iter_bytes(), pulse, most_bytes)
    start = _start(parts)
    body = chain([start], parts)
    is_stream = "event-stream" in response.headers.get("content-type", "")
    if start.startswith(_EVENTS) or (is_stream and not start.startswith(b"{")):
        return assembled(chunks(_lines(body)))
    text = b"".join(body).decode("utf-8-sig", "replace")
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return text


def _bounded(parts: Iterable[bytes], pulse: Pulse, most_bytes: int) -> Iterator[bytes]:
    left = most_bytes
    for part in parts:
        pulse.beat()
        left -= len(part)
        if left < 0:
            raise Broken(f"the reply is longer than {most_bytes:,} bytes")
        yield part


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
