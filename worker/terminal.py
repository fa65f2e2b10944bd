"""What every command that prints needs: text made safe, units, folding, a line of activity.

Nothing that a model, its code or a file's name says passes through Rich's markup, and what a
terminal would act on is taken out or made visible first (`safe`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console, ConsoleOptions
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from sandbox.transcript import clean
from sandbox.types import Execution, Interpreter
from worker.sizes import said_bytes

MAX_CHARS = 1_000_000
MAX_WIDTH = 110
HEAD_LINES, TAIL_LINES = 30, 10
_PLAIN_WIDTH = 80
_THEME = Theme({"progress.elapsed": "dim", "markdown.code": "cyan"})


def safe(text: str) -> str:
    """Text of unknown origin, fit for a terminal."""
    return clean(text, MAX_CHARS)


def time_text(seconds: float) -> str:
    """A span for people: 7 ms, 0.8 s, 42 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 0.1:  # noqa: PLR2004 - below, a decimal of seconds says nothing
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:  # noqa: PLR2004 - one decimal is what can be felt
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Say that nobody reads any more: Rich itself would end the program, and its work."""
        # What is still in the buffer must not be complained about at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise BrokenPipeError


def make_console(file: TextIO | None = None) -> Console:
    """A console that folds lines on a terminal and leaves them whole everywhere else."""
    console = _Console(
        file=file or sys.stdout, highlight=False, markup=False, emoji=False, theme=_THEME
    )
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.width = min(console.width, MAX_WIDTH)
    return console


class Activity:
    """A line that says what is going on and for how long; on a terminal only."""

    def __init__(self, console: Console) -> None:
        columns = (
            SpinnerColumn("dots", style="cyan"),
            TextColumn("{task.description}", style="dim", markup=False),
            TimeElapsedColumn(),
        )
        self._is_shown = console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True)

    def show(self, what: str) -> None:
        self.hide()
        if self._is_shown:
            said = " ".join(safe(what).split())  # it may name what a model has named
            self._progress.add_task(f"{said} …", total=None)
            try:
                self._progress.start()
            except OSError:
                self._is_shown = False  # what is half started cannot be stopped
                raise

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        self.show(what)
        try:
            yield
        finally:
            self.hide()

    @contextmanager
    def during_long(self, what: str, after_s: float = 1.0) -> Iterator[None]:
        """Say what goes on only when it takes longer than expected."""
        timer = threading.Timer(after_s, self._show_late, (what,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            self.hide()

    def _show_late(self, what: str) -> None:
        with suppress(OSError):  # a terminal that has gone away
            self.show(what)

    def hide(self) -> None:
        if not self._is_shown:
            return  # stopping prints an empty line where there is no terminal
        self._progress.stop()
        for task in self._progress.task_ids:
            self._progress.remove_task(task)


def write_block(console: Console, text: Text, gutter: str = "", gutter_style: str = "") -> None:
    """Print text behind a gutter, folded to the terminal's width if it is one."""
    _write_lines(console, _lines(console, text, gutter), gutter, gutter_style)


def write_shortened(
    console: Console, text: Text, gutter: str = "", gutter_style: str = "", *, hint: str = ""
) -> None:
    """Print the first and the last lines of a long text, and how much is between them.

    They are counted as they are shown: one long line may be many. `hint` says where all of it is.
    """
    lines = _lines(console, text, gutter)
    left_out = lines[HEAD_LINES:-TAIL_LINES]
    if len(left_out) > 1:
        count = sum(len(line) for line in left_out)
        note = f"… {len(left_out)} more lines, {count:,} characters{hint} …"
        lines = [*lines[:HEAD_LINES], Text(note, "dim italic"), *lines[-TAIL_LINES:]]
    _write_lines(console, lines, gutter, gutter_style)


def _lines(console: Console, text: Text, gutter: str) -> list[Text]:
    text.expand_tabs(4)
    lines = list(text.split("\n", allow_blank=True))
    if not console.is_terminal:
        return lines
    room = max(20, console.width - len(gutter))
    return [part for line in lines for part in _folded(console, line, room)]


def _folded(console: Console, line: Text, width: int) -> Iterable[Text]:
    # Some texts of Rich's say that they are not to be folded, and then their ends are lost.
    return line.wrap(console, width, no_wrap=False) if line.cell_len > width else [line]


def _write_lines(console: Console, lines: Iterable[Text], gutter: str, gutter_style: str) -> None:
    for line in lines:
        line.rstrip()
        edge = gutter if line else gutter.rstrip()
        console.print(Text.assemble((edge, gutter_style), line), soft_wrap=True)


def figures(execution: Execution) -> str:
    """Time and memory of an execution, and what became of the interpreter if that matters."""
    parts = [time_text(execution.duration_s)]
    if execution.peak_memory_bytes:
        parts.append(f"peak {said_bytes(execution.peak_memory_bytes)}")
    if execution.interpreter is Interpreter.RESTARTED:
        parts.append("interpreter restarted, its variables are gone")
    if execution.background_processes:
        parts.append(f"{execution.background_processes} still running in the background")
    return "  " + " · ".join(parts)


def write_settings(console: Console, rows: Iterable[tuple[str, str, str]]) -> None:
    """Names, values and origins; what is not a default stands out. A pipe gets whole lines."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("setting", "value", "from"):
        table.add_column(title, overflow="fold", no_wrap=title == "setting")
    for name, value, origin in rows:
        style = "dim" if origin == "default" else "bold"
        table.add_row(name, Text(safe(value)), Text(safe(origin)), style=style)
    write_table(console, table)


def write_table(console: Console, table: Table) -> None:
    """Print a table; where there is no terminal, as wide as it comes to be, without a fold."""
    if not console.is_terminal:
        console.width = console.measure(table, options=_endless(console)).maximum
    console.print(table)


def _endless(console: Console) -> ConsoleOptions:
    return console.options.update(width=MAX_CHARS)


def write_check(console: Console, name: str, detail: str, *, is_ok: bool) -> None:
    """One line of a health check; a failure stands out."""
    mark = Text("✓", "green") if is_ok else Text("✗", "bold red")
    title = Text(safe(name), "" if is_ok else "bold")
    said = Text(safe(detail), "dim" if is_ok else "")
    if not console.is_terminal:
        write_block(console, Text(" ").join([mark, Text(f"{title.plain:<18}"), said]))
        return
    row = Table.grid(padding=(0, 1))
    for width in (1, 18, None):
        row.add_column(width=width, overflow="fold")
    row.add_row(mark, title, said)
    console.print(row)
