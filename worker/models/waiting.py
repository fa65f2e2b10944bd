"""Time: how much of it a reply may take, and how long endpoints ask us to wait."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from worker.errors import Cancelled

POLL_S = 0.1
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhd])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TOLD = re.compile(  # "try again in 1m2.5s", "Please retry after 26 seconds", "retryDelay": "37s"
    r"(?:(?:try again|retry|wait)(?: your request)?(?: in| after| for)?:?|"
    r"retry_?(?:after|delay)\W+)"
    r"\s*(?:about |at least )?((?:\d+(?:\.\d+)?\s*"
    r"(?:ms|milliseconds?|s|seconds?|secs?|minutes?|mins?|m|hours?|h|days?|d)\b[\s,]*(?:and )?)+"
    r"|(?:\d+(?:\.\d+)?(?:ms|[smhd]))+)",
    re.IGNORECASE,
)
_WORDS = (("millisecond", "ms"), ("second", "s"), ("sec", "s"), ("minute", "m"), ("min", "m"))
_LONG_WORDS = (("hour", "h"), ("day", "d"))
_RESETS = re.compile(
    r"(?:x-)?(?:anthropic-)?rate-?limit(?:-(requests|tokens|input-tokens|output-tokens))?-reset"
    r"|x-ratelimit-reset(?:-(requests|tokens))?",
    re.IGNORECASE,
)
_EPOCH_S, _EPOCH_MS = 1e9, 1e12  # larger numbers are moments, not spans
_MOST_CHARS = 100  # of a time, which may be a date
_MOST_S = 7 * 86_400.0


class Patience:
    """The time that a reply may take, and how much of it went by with waiting for others."""

    def __init__(self, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        self.is_cancelled = is_cancelled
        self.timeout_s = timeout_s
        self.waited_s = 0.0
        self._started = time.monotonic()
        self._deadline = self._started + timeout_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._started

    def wait(self, seconds: float) -> None:
        """Let time go by, which counts as waiting. Raises `Cancelled` soon after it is asked."""
        until = time.monotonic() + seconds
        self.waited_s += seconds
        while (left := until - time.monotonic()) > 0:
            if self.is_cancelled():
                raise Cancelled
            time.sleep(min(POLL_S, left))


def asked_by_headers(headers: Mapping[str, str]) -> float | None:
    """Seconds that the headers of an answer ask us to wait, in each of the ways they say it."""
    given = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if name in given and (seconds := _seconds(given[name], unit)) is not None:
            return seconds
    waits = [w for name, value in given.items() if (w := _reset(name, value, given)) is not None]
    return max(waits, default=None)


def asked_by_text(told: str) -> float | None:
    """Seconds that the text of an error asks us to wait."""
    found = _TOLD.search(told)
    if found is None:
        return None
    span = found[1].lower()
    for word, unit in (*_WORDS, *_LONG_WORDS):
        span = re.sub(rf"{word}s?\b", unit, span)
    return _span(span)


def _seconds(value: str, unit: float) -> float | None:
    """A number, a span like 1m2.5s, or a date."""
    value = value.strip()[:_MOST_CHARS]
    if _NUMBER.fullmatch(value):
        return _until(float(value) * unit)
    if (span := _span(value)) is not None:
        return span
    return _from_date(value)


def _span(text: str) -> float | None:
    parts = _SPAN.findall(text)
    if not parts or _SPAN.sub("", text).strip(" ,and"):
        return None
    return min(_MOST_S, sum(float(number) * _UNITS[unit] for number, unit in parts))


def _until(number: float) -> float:
    """Seconds, or a moment in seconds or milliseconds since 1970."""
    if number > _EPOCH_S:
        moment = number / 1000 if number > _EPOCH_MS else number
        number = max(0.0, moment - time.time())
    return min(_MOST_S, number)


def _from_date(value: str) -> float | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(value)
        except ValueError:
            continue
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, (zoned - datetime.now(UTC)).total_seconds())
    return None


def _reset(name: str, value: str, given: Mapping[str, str]) -> float | None:
    """When a limit that is used up begins anew; others are no reason to wait."""
    if not _RESETS.fullmatch(name):
        return None
    left = given.get(name.replace("reset", "remaining"), "0")
    return _seconds(value, 1.0) if left.strip() in {"0", "0.0"} else None
