"""Put a run into the documents: its figures into docs/performance.md, and its picture beside it.

    python -m bench.report [JSON]       default: build/bench.json

The JSON itself is kept as docs/performance.json, so that page and picture can be made again. The
page describes a whole run: one that lacks a row is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.contest import ROOT
from bench.stage import ROWS

PAGE = ROOT / "docs/performance.md"
KEPT = ROOT / "docs/performance.json"
PICTURE = ROOT / "docs/images/performance.png"
BEGIN, END = "<!-- written by python -m bench.report -->\n", "<!-- until here -->\n"


def placed(page: str, report: dict[str, Any]) -> str:
    """The page with the figures of this run in their place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    lacks = lacking(report)
    said = f"This run is not a whole one; it lacks: {'; '.join(lacks)}.\n\n" if lacks else ""
    return f"{before}{BEGIN}\n{said}{table.markdown(report)}\n\n{END}{after}"


def lacking(report: dict[str, Any]) -> list[str]:
    """The titles of what was not measured in a run."""
    found = {line["row"] for line in report["rows"]}
    return [row.title for name, row in ROWS.items() if name not in found]


def main(arguments: Sequence[str]) -> int:
    source = Path(arguments[0]) if arguments else ROOT / "build/bench.json"
    report = json.loads(source.read_text(encoding="utf-8"))
    if missing := lacking(report):
        print(f"bench: {source} is not of a whole run: {'; '.join(missing)}", file=sys.stderr)
        return 2
    from bench import plot  # noqa: PLC0415 - what is refused needs no matplotlib

    KEPT.write_text(table.compact(report), encoding="utf-8")
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")
    plot.draw(report, PICTURE)
    print(f"written: {PAGE}, {KEPT}, {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
