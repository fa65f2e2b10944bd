"""Mistakes that libraries complain of: a table of patterns, `prompts/mistakes.toml`."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from worker.hints.case import Case, mended
from worker.prompts import mistakes


class _Row(NamedTuple):
    says: re.Pattern[str]
    line: re.Pattern[str]
    hint: str
    instead: str | None


@cache
def _rows() -> tuple[_Row, ...]:
    return tuple(
        _Row(
            re.compile(row["says"]),
            re.compile(row.get("line", "")),
            row["hint"],
            row.get("instead"),
        )
        for row in mistakes()
    )


def mistake(case: Case) -> str | None:
    """The hint of the first row that fits."""
    if not case.type:
        return None
    for row in _rows():
        if (said := row.says.search(case.told)) and (line := row.line.search(case.source)):
            blanks = {**said.groupdict(), **line.groupdict()}
            return row.hint.format(**blanks) + _mended(case, line, row.instead, blanks)
    return None


def _mended(
    case: Case, found: re.Match[str], instead: str | None, blanks: dict[str, str | None]
) -> str:
    """The failing line with what was found in it replaced."""
    if instead is None:
        return ""
    start, end = found.span()
    return mended(case, case.source[:start] + instead.format(**blanks) + case.source[end:])
