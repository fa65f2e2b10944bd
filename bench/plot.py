"""Draw the report of a run: sandboxes and loops beside others, and how sandboxes grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench import table
from bench.parts import CLIENT, ENGINE, FLOOR, PIPED
from bench.stage import OURS

OWN, PEER, BELOW = "#0f766e", "#b8c0cc", "#e3d9c3"  # ours, others, what lies below all of them
WIDE = 30.0  # from which ratio on the scale is one of powers of ten
INK, FAINT = "#1f2933", "#6b7785"
BARS = {  # rows that are bars, and what is said above them
    "open": "Open a sandbox",
    "call": "A trivial Python call",
    "pandas": "First import of pandas",
    "close": "Close, as its caller waits",
    "step": "A step of the loop",
}
CROWDS = {"crowd_open": "opening, each", "crowd_call": "a call, each"}


def draw(report: dict[str, Any], picture: Path) -> None:
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9, "text.color": INK})
    figure = Figure(figsize=(12, 7.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr]
    grid = figure.subplots(2, 3)
    for axes, (row, title) in zip(grid.flat, BARS.items(), strict=False):
        _bars(axes, title, [line for line in report["rows"] if line["row"] == row])
    _crowds(grid.flat[-1], report["rows"])
    machine = report["machine"]
    figure.suptitle(
        f"Medians of one run, {report['date']}: {machine['processors']} processors, "
        f"Docker {machine['engine']}, Linux {machine['kernel'].partition('-')[0]}. "
        "Scales are logarithmic, but for the steps.",
        fontsize=9,
        color=FAINT,
    )
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=140, metadata={"Comment": table.digest(report)})


def _bars(axes: Axes, title: str, lines: Sequence[dict[str, Any]]) -> None:
    """One bar for each contestant."""
    _dress(axes, title)
    axes.set_yticks(range(len(lines)), [line["who"] for line in lines])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_visible(False)
    if not lines:
        axes.text(0.5, 0.5, "not measured", ha="center", color=FAINT, transform=axes.transAxes)
        return
    values = [line["median"] for line in lines]
    start = 0.0
    if max(values) > WIDE * min(values):
        start = min(values) / 3
        axes.set_xscale("log")
        axes.set_xlim(start, max(values) * (max(values) / start) ** 0.3)  # room for the numbers
    else:
        axes.set_xlim(start, max(values) * 1.3)
    axes.barh(
        range(len(lines)),
        [value - start for value in values],
        left=start,
        color=[_color(line["who"]) for line in lines],
        height=0.72,
    )
    for place, line in enumerate(lines):
        _label(axes, place, line)


def _label(axes: Axes, place: int, line: dict[str, Any]) -> None:
    weight = "bold" if line["who"].startswith(OURS) else "normal"
    axes.annotate(
        f"{table.number(line['median'])} ms",
        (line["median"], place),
        (4, 0),
        textcoords="offset points",
        va="center",
        weight=weight,
    )
    axes.get_yticklabels()[place].set_weight(weight)


def _crowds(axes: Axes, lines: Sequence[dict[str, Any]]) -> None:
    """What each of many sandboxes costs: level, as long as nothing grows faster than they do."""
    _dress(axes, "Many sandboxes at once")
    if not any(line["row"] in CROWDS for line in lines):
        axes.set_axis_off()
        return
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    for style, (row, name) in zip(("o-", "s--"), CROWDS.items(), strict=True):
        found = [line for line in lines if line["row"] == row]
        if not found:
            continue
        counts = [int(line["who"].rpartition(" ")[2]) for line in found]
        values = [line["median"] for line in found]
        axes.plot(counts, values, style, color=OWN, markersize=5)
        axes.annotate(
            f"{name}: {table.number(values[-1])} ms",
            (counts[-1], values[-1]),
            (0, 8),
            textcoords="offset points",
            ha="right",
        )
        axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.margins(y=0.35)
    axes.set_xlabel("sandboxes", color=FAINT)
    axes.set_ylabel("ms", color=FAINT)


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, weight="bold")
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(PEER)


def _color(who: str) -> str:
    if who.startswith(OURS):
        return OWN
    return BELOW if who in {ENGINE, PIPED, FLOOR, CLIENT} else PEER
