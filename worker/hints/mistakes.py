"""Mistakes that libraries complain of: a table of patterns, `prompts/mistakes.toml`."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from worker.hints.case import Advice, Case, mended
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


def mistake(case: Case) -> Advice | None:
    """The advice of the first row that fits."""
    if not case.type:
        return None
    for row in _rows():
        if (said := row.says.search(case.told)) and (line := row.line.search(case.source)):
            blanks = {**said.groupdict(), **line.groupdict()}
            text = row.hint.format(**blanks)
            if row.instead is None:
                return Advice(text)
            start, end = line.span()
            better = case.source[:start] + row.instead.format(**blanks) + case.source[end:]
            return mended(text, case.source, better)
    return None
