"""The report of a run, from its JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from bench.parts import COLD, STORES, WARM
from bench.stage import OURS

Line = dict[str, Any]
Cells = tuple[str, ...]

ROW_HEAD = ("", "n", "median", "95 %", "times ours")
TARGET_HEAD = ("target", "limit", "reached", "")


def compact(report: Line) -> str:
    """The JSON of a report: a line for each of its rows and targets, so that changes show."""
    parts = [f"{json.dumps(name)}: {_json(value)}" for name, value in report.items()]
    return "{" + ",\n".join(parts) + "}\n"


def digest(report: Line) -> str:
    """By which a picture tells the run that it shows."""
    return hashlib.sha256(compact(report).encode()).hexdigest()


def _json(value: object) -> str:
    if isinstance(value, list):
        return "[" + ",\n".join(map(json.dumps, value)) + "]"
    return json.dumps(value)


def rows(report: Line) -> Iterator[tuple[str, str, list[Line]]]:
    """Title and unit of each row, and its lines, each with `times`: how many times ours it is."""
    for (title, unit), lines in groupby(report["rows"], lambda line: (line["title"], line["unit"])):
        found = list(lines)
        ours = _ours(found)
        is_contest = {line["who"].partition(",")[0] for line in found} != {OURS}
        once = ours["median"] if ours and is_contest else None
        yield title, unit, [{**each, "times": once and each["median"] / once} for each in found]


def _ours(lines: list[Line]) -> Line | None:
    """With which line the others are compared."""
    for who in (WARM, COLD, STORES["sqlite"], OURS):
        for line in lines:
            if line["who"] == who and line["median"]:
                return line
    return None


def number(value: float) -> str:
    """Three digits, and never an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) < 10 else 1
    return f"{value:.{digits if abs(value) >= 0.1 else 4}f}"


def markdown(report: Line) -> str:
    """The whole report, to be read in a terminal as well as in a document."""
    parts = [_setting(report), _grid([ROW_HEAD, *_row_cells(report)])]
    if report["targets"]:
        parts.append(_grid([TARGET_HEAD, *map(_target_cells, report["targets"])]))
    parts += [f"Not measured: {who} ({why})." for who, why in report["missing"].items()]
    return "\n\n".join(parts)


def _row_cells(report: Line) -> Iterator[Cells]:
    for title, unit, lines in rows(report):
        yield f"**{title}**", "", unit, unit, ""
        for line in lines:
            times = number(line["times"]) if line["times"] else ""
            median, late = number(line["median"]), number(line["p95"])
            yield line["who"], str(line["n"]), median, late, times


def _target_cells(target: Line) -> Cells:
    bound = "≥" if target["is_floor"] else "≤"
    limit = f"{bound} {number(target['limit'])} {target['unit']}"
    verdict = "met" if target["is_met"] else "**missed**"
    return target["name"], limit, number(target["value"]), verdict


def _grid(lines: Sequence[Cells]) -> str:
    """A table with its columns below each other; the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    aligned = [
        [cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]
        for cells in (lines[0], rule, *lines[1:])
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in aligned)


def _setting(report: Line) -> str:
    machine = report["machine"]
    versions = ", ".join(dict.fromkeys(report["versions"].values()))
    return (
        f"Run of {report['date']}, {report['rounds']} rounds: {machine['processors']} processors "
        f"({machine['processor']}), {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Docker {machine['engine']}, Python {machine['python']}; {versions}. Other processes "
        f"kept {number(machine['load_before'])} processors busy before it."
    )
