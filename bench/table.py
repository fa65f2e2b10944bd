"""The report of a run, from its JSON: as text for a terminal, and as tables for a document."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from bench.parts import COLD, STORES, WARM
from bench.stage import OURS

Line = dict[str, Any]


def rows(report: Line) -> Iterator[tuple[str, str, list[Line]]]:
    """Title and unit of each row, and its lines, each with `times`: how many times ours it is."""
    for (title, unit), lines in groupby(report["rows"], lambda line: (line["title"], line["unit"])):
        found = list(lines)
        ours = _ours(found)
        is_contest = {line["who"].partition(",")[0] for line in found} != {OURS}
        for line in found:
            line["times"] = line["median"] / ours["median"] if ours and is_contest else None
        yield title, unit, found


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


def text(report: Line) -> str:
    """For a terminal."""
    return "\n".join([*_text_rows(report), *_text_missing(report), *_text_targets(report)])


def _text_rows(report: Line) -> Iterator[str]:
    for title, unit, lines in rows(report):
        yield f"\n{title}"
        yield f"  {'':32}{'n':>6}{'median':>12}{'95 %':>12} {unit:7}{'times ours':>11}"
        for line in lines:
            times = f"{number(line['times']):>11}" if line["times"] else ""
            told = f"{number(line['median']):>12}{number(line['p95']):>12}"
            yield f"  {line['who']:32}{line['n']:6}{told} {unit:7}{times}".rstrip()


def _text_missing(report: Line) -> Iterator[str]:
    if report["missing"]:
        yield "\nnot measured"
    for who, why in report["missing"].items():
        yield f"  {who}: {why}"


def _text_targets(report: Line) -> Iterator[str]:
    if report["targets"]:
        yield "\ntargets"
    for target in report["targets"]:
        bound = "at least" if target["is_floor"] else "at most"
        limit = f"{bound} {number(target['limit'])} {target['unit']}"
        verdict = "met" if target["is_met"] else "MISSED"
        yield f"  {target['name']:64}{number(target['value']):>9}  {limit:18} {verdict}"


def markdown(report: Line) -> str:
    """For a document."""
    lines = [_setting(report), ""]
    lines += ["| | n | median | 95 % | times ours |", "|---|--:|--:|--:|--:|"]
    for title, unit, found in rows(report):
        lines.append(f"| **{title}** | | {unit} | {unit} | |")
        for line in found:
            times = number(line["times"]) if line["times"] else ""
            told = f"{number(line['median'])} | {number(line['p95'])}"
            lines.append(f"| {line['who']} | {line['n']} | {told} | {times} |")
    lines += ["", "| target | limit | reached | |", "|---|--:|--:|---|"]
    for target in report["targets"]:
        bound = "≥" if target["is_floor"] else "≤"
        limit = f"{bound} {number(target['limit'])} {target['unit']}"
        verdict = "met" if target["is_met"] else "**missed**"
        lines.append(f"| {target['name']} | {limit} | {number(target['value'])} | {verdict} |")
    lines += [f"\nNot measured: {who} ({why})." for who, why in report["missing"].items()]
    return "\n".join(lines)


def _setting(report: Line) -> str:
    machine = report["machine"]
    versions = ", ".join(dict.fromkeys(report["versions"].values()))
    return (
        f"Run of {report['date']}, {report['rounds']} rounds: {machine['processors']} processors "
        f"({machine['processor']}), {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Docker {machine['engine']}, Python {machine['python']}; {versions}. Other processes "
        f"kept {number(machine['load_before'])} processors busy before it."
    )
