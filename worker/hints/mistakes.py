"""Mistakes that libraries complain of: a table of patterns, `prompts/mistakes.toml`."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from worker.hints.case import Case
from worker.prompts import mistakes


class _Row(NamedTuple):
    says: re.Pattern[str]
    line: re.Pattern[str]
    hint: str


@cache
def _rows() -> tuple[_Row, ...]:
    return tuple(
        _Row(re.compile(row["says"]), re.compile(row.get("line", "")), row["hint"])
        for row in mistakes()
    )


def mistake(case: Case) -> str | None:
    """The hint of the first row that fits."""
    if not case.type:
        return None
    for row in _rows():
        if (said := row.says.search(case.told)) and (line := row.line.search(case.source)):
            return row.hint.format(**said.groupdict(), **line.groupdict())
    return None
