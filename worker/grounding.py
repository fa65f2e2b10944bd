"""Answers that nothing supports: each goes back once, with what is missing.

Models, small ones above all, like to give an answer in the very form that was asked for with a
value that they made up. Whether an answer is true nobody can tell here, but four things are
certain: that no file was looked at, that the last thing it tried has failed, that a blank was
not filled in, and that a number stands in no result. Who gives the same answer again means it, at
the price of one reply.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from worker.answers import Answers
from worker.budget import is_spent
from worker.history import History, Turn
from worker.hooks import Hook, Run
from worker.messages import Reply, ResultStatus
from worker.prompts import notice

REASON = "grounding:"
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
# As people write numbers: with separators of thousands, or a comma before the decimals.
_SAID = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,'’ \u00a0\u202f]\d+)*(?:[eE][-+]?\d{1,3})?")
_GROUPED = re.compile(r"[-+]?\d{1,3}([.,'’ \u00a0\u202f])\d{3}(?:\1\d{3})*(?:[.,]\d+)?")
_LIST = re.compile(r"[-+]?\d+(?:,\d+)+")
_COMMA = re.compile(r"[-+]?\d+,\d+")
_DATE = re.compile(r"\d{1,2}\.\d{1,2}\.\d{2,4}")
_BLANK = re.compile(r"\[[a-z]+(?:_[a-z]+)+\]|<[a-z]+(?:_[a-z]+)+>|\{[a-z]+(?:_[a-z]+)+\}")
_TELLING = 3  # digits; shorter numbers count things that need no result
_SHOWN = 5


class GroundingHook(Hook):
    """Sends an answer back that no result supports, once for each reason."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def after_model(self, run: Run, reply: Reply) -> None:
        history = run.history
        if history.last.notices or not (said := self._answers.said_in(reply)):
            return
        # asking again would only end the job: a recording, or one whose budget is spent
        if reply.is_last or is_spent(history, run.clock()):
            return
        kind, told = _fault(history, said[0])
        if kind and not _is_told(history, kind):
            run.notify(told, REASON + kind, self._answers.checked(reply)[0])


def _fault(history: History, answer: str) -> tuple[str, str]:
    """What an answer lacks, and how that is said; empty texts for one that lacks nothing."""
    tried = next(filter(_has_tried, reversed(history.turns[:-1])), None)
    if tried is None:
        return ("files", notice("ungrounded_files")) if has_files(history) else ("", "")
    if _has_failed(tried):
        hints = [result.hint for result in tried.results.values() if result.hint]
        hint = f"\nhint: {hints[-1]}" if hints else ""
        return "failed", notice("ungrounded_failed", hint=hint)
    if blank := _blank(history, answer):
        return "blanks", notice("ungrounded_blanks", blank=blank)
    made_up = list(dict.fromkeys(made_up_numbers(answer, _seen(history))))[:_SHOWN]
    if made_up:
        return "numbers", notice("ungrounded_numbers", numbers=", ".join(made_up))
    return "", ""


def _blank(history: History, answer: str) -> str | None:
    """A blank of the format that was asked for, which the answer has not filled in."""
    asked = history.opening[-1].text if history.opening else ""
    return next((blank for blank in _BLANK.findall(answer) if blank in asked), None)


def _is_told(history: History, kind: str) -> bool:
    return any(n.reason == REASON + kind for turn in history.turns for n in turn.notices)


def has_files(history: History) -> bool:
    """Whether the first messages of the job show files or mounts."""
    told = history.opening[-1].text if history.opening else ""
    return notice("files") in told or notice("mounts") in told


def _has_tried(turn: Turn) -> bool:
    return any(result.status is not ResultStatus.SKIPPED for result in turn.results.values())


def _has_failed(turn: Turn) -> bool:
    failed = {ResultStatus.ERROR, ResultStatus.REFUSED}
    tried = {result.status for result in turn.results.values()} - {ResultStatus.SKIPPED}
    return tried <= failed


def _seen(history: History) -> Iterator[str]:
    """Everything that a number of an answer may come from."""
    yield from (message.text for message in history.opening)
    for turn in history.turns[:-1]:
        yield from (call.arguments for call in turn.calls)
        yield from (result.text for result in turn.results.values())


def made_up_numbers(answer: str, seen: Iterable[str]) -> Iterator[str]:
    """Yield the numbers of an answer that are in no text, nor are one of those rounded.

    A number may have lost its sign, be a percentage, or a share of one, and be written as in any
    country. Numbers of fewer than three digits are not looked at.
    """
    asked = [said for said in _SAID.findall(answer) if _digits(said) >= _TELLING]
    if not asked:
        return
    known = sorted({abs(_value(found)) for text in seen for found in _NUMBER.findall(text)})
    for said in asked:
        telling = (text for text in _NUMBER.findall(said) if _digits(text) >= _TELLING)
        missing = [text for text in telling if not _is_known(text, known)]
        if missing and not any(all(_is_known(t, known) for t in way) for way in _read(said)):
            yield from missing


def _read(said: str) -> Iterator[list[str]]:
    """The other ways in which a number can be meant."""
    if grouped := _GROUPED.fullmatch(said):
        yield [said.replace(grouped[1], "").replace(",", ".")]
    if _LIST.fullmatch(said):
        yield said.split(",")
    if _COMMA.fullmatch(said):
        yield [said.replace(",", ".")]
    if _DATE.fullmatch(said):
        yield said.split(".")


def _digits(text: str) -> int:
    return sum(character.isdigit() for character in text.partition("e")[0].partition("E")[0])


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _is_known(text: str, known: list[float]) -> bool:
    value, half = abs(_value(text)), _precision(text) / 2 * (1 + 1e-6)
    for scale in (1.0, 100.0, 0.01):
        at = bisect_left(known, (value - half) / scale)
        if at < len(known) and known[at] * scale <= value + half:
            return True
    return False


def _precision(text: str) -> float:
    """What the last digit of a number stands for that is not a zero before the point."""
    mantissa, _, exponent = text.lower().replace(",", "").partition("e")
    whole, _, decimals = mantissa.partition(".")
    zeros = 0 if decimals else len(whole) - len(whole.rstrip("0"))
    return float(f"1e{zeros - len(decimals) + int(exponent or 0)}")
