"""Jobs as a person looks them up: many as a table, one with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sandbox.transcript import clean
from worker.following import CANCELLER, waits_for
from worker.messages import Artifact, Status
from worker.sizes import said_bytes
from worker.store.base import Attempt, Listed, WorkerSeen
from worker.terminal import safe, time_text, write_block, write_table
from worker.trace import ending_text, folder_of, write_answer

SIGNS = {
    Status.QUEUED: ("○", "cyan"),
    Status.RUNNING: ("●", "bold cyan"),
    Status.WAITING: ("?", "yellow"),
    Status.SUCCEEDED: ("✓", "green"),
    Status.FAILED: ("✗", "red"),
    Status.CANCELLED: ("–", "yellow"),
    Status.DEAD: ("✗", "bold red"),
}
_GOAL_CHARS = 200
_PIPED_CHARS = 80
_GAP = "  "
_TO_THE_RIGHT = (2, 3)  # columns of numbers
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


# ---- many


def write_jobs(
    console: Console,
    jobs: Sequence[Listed],
    workers: Sequence[WorkerSeen],
    now: float,
    broker_fault: str = "",
) -> None:
    """One job a line; beside it, on a terminal below it, who has it or what it waits for."""
    notes = [Text(safe(note(found, workers, broker_fault)), "dim") for found in jobs]
    rows = [_row(found, now, console) for found in jobs]
    titles = [Text(title, "dim") for title in ("id", "status", "steps", "age", "goal")]
    columns = list(zip(titles, *rows, strict=True))
    widths = [max(cell.cell_len for cell in column) for column in columns]
    if not console.is_terminal:  # a pipe gets a job on one line
        rows = [[*row, said] for row, said in zip(rows, notes, strict=True)]
        titles, widths, notes = [*titles, Text("note")], [*widths, 0], [Text()] * len(notes)
    _write_row(console, titles, widths)
    for row, said in zip(rows, notes, strict=True):
        _write_row(console, row, widths)
        if said:
            _write_row(console, [Text(), said], [0, 0])


def _row(found: Listed, now: float, console: Console) -> list[Text]:
    job = found.job
    most = _GOAL_CHARS if console.is_terminal else _PIPED_CHARS
    return [
        Text(safe(job.id), style="dim" if job.status.is_final else ""),
        status_text(job.status),
        Text(str(job.steps)),
        Text(age_text(now - found.created_at), style="dim"),
        Text(_one_line(job.goal, most)),
    ]


def _write_row(console: Console, cells: Sequence[Text], widths: Sequence[int]) -> None:
    """Print cells below those of other rows; the last one is cut where the terminal ends."""
    line = Text()
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        pad = " " * max(0, width - cell.cell_len)
        pair = (pad, cell) if number in _TO_THE_RIGHT else (cell, pad)
        line.append_text(Text.assemble(*pair, _GAP))
    line.rstrip()
    if console.is_terminal:
        line.truncate(console.width, overflow="ellipsis")
    console.print(line, soft_wrap=True)


def _one_line(text: str, most: int) -> str:
    line = " ".join(clean(text, 10 * most).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def status_text(status: Status) -> Text:
    sign, style = SIGNS[status]
    return Text.assemble((f"{sign} ", style), (status.value, style))


def note(found: Listed, workers: Sequence[WorkerSeen], broker_fault: str = "") -> str:
    """Who works on a job, what it waits for, or why it failed."""
    if found.job.status.is_final:
        error = None if found.job.status is Status.CANCELLED else found.job.error
        return _one_line(error.message, _GOAL_CHARS) if error else ""
    if not found.is_held:
        return f"waits for {waits_for(found, workers, broker_fault)}"
    ending = ", is being cancelled" if found.is_cancelling else ""
    return f"on {found.worker}{ending}"


def workers_text(workers: Sequence[WorkerSeen], broker_fault: str = "") -> str:
    """Which workers were seen lately, and what to do if there are none: mend the broker first."""
    if broker_fault:
        return f"{broker_fault}; until it does its work, workers begin no job"
    if not workers:
        return "no worker was seen in the last minute; start one with: caisson worker"
    names = ", ".join(worker.name for worker in workers)
    count = "1 worker was" if len(workers) == 1 else f"{len(workers)} workers were"
    return f"{count} seen in the last minute: {names}"


def age_text(seconds: float) -> str:
    """How long ago, in the largest unit: 42 s, 5 min, 3 h, 9 d."""
    seconds = max(0.0, seconds)
    for unit, length_s, below_s in (
        ("s", 1, _MINUTE_S),
        ("min", _MINUTE_S, _HOUR_S),
        ("h", _HOUR_S, 2 * _DAY_S),
    ):
        if seconds < below_s:
            return f"{seconds // length_s:.0f} {unit}"
    return f"{seconds // _DAY_S:.0f} d"


# ---- one


def write_job(
    console: Console,
    found: Listed,
    attempts: Sequence[Attempt],
    standing: str,
    now: float,
) -> None:
    """Everything about a job but its trace. `standing` is its `note`."""
    job = found.job
    _write_facts(console, list(_facts(found, standing, now)))
    if len(attempts) > 1:
        _write_attempts(console, attempts, now)
    write_section(console, "goal")
    write_block(console, Text(safe(job.goal)), "  ")
    if job.answer:
        write_section(console, "answer", "bold green")
        write_answer(console, job.answer)
    if job.status.is_final:
        console.print()
        write_block(console, ending_text(job))
    if job.error is not None:
        write_block(console, Text(safe(job.error.message)), "  ")
    if job.artifacts:
        write_section(console, "artefacts")
        write_artifacts(console, job.artifacts)
    if not job.status.is_final:
        console.print()
        write_block(console, Text(f"watch it: caisson watch {safe(job.id)}", style="dim"))


def _write_facts(console: Console, facts: Sequence[tuple[str, Text]]) -> None:
    width = max(len(label) for label, _ in facts) + len(_GAP)
    for label, value in facts:
        lines = value.wrap(console, console.width - width) if console.is_terminal else [value]
        for number, line in enumerate(lines):
            name = "" if number else label
            console.print(Text.assemble((f"{name:<{width}}", "dim"), line), soft_wrap=True)


def _facts(found: Listed, standing: str, now: float) -> Iterator[tuple[str, Text]]:
    job = found.job
    yield "job", Text(safe(job.id), style="bold")
    said = "" if job.status.is_final else f"  {safe(standing)}"
    yield "status", status_text(job.status).append(said, style="dim")
    if not job.status.is_final:
        yield "steps", Text(str(job.steps))
    if job.model:
        yield "model", Text(safe(job.model))
    yield "asked", Text(_moment(found.created_at, now))
    if found.ended_at is not None:
        took = time_text(found.ended_at - found.created_at)
        yield "ended", Text(f"{_moment(found.ended_at, now)}, {took} after it was asked")
    if found.order.priority:
        yield "priority", Text(f"{found.order.priority:+d}")
    if found.order.key is not None:
        yield "key", Text(safe(found.order.key))
    for number, file in enumerate(found.order.inputs):
        size = (f"  {said_bytes(file.size)}", "dim")
        yield "" if number else "files", Text.assemble(safe(file.name), size)
    for number, path in enumerate(found.order.mounts):
        yield "" if number else "mounts", Text(safe(path))


def _moment(at: float, now: float) -> str:
    return f"{_clock(at, now)} ({age_text(now - at)} ago)"


def _clock(at: float, now: float) -> str:
    """A time of today, or a day and a time, as clocks here show it."""
    moment, today = (datetime.fromtimestamp(t).astimezone() for t in (at, now))
    is_today = moment.date() == today.date()
    return f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"


def _write_attempts(console: Console, attempts: Sequence[Attempt], now: float) -> None:
    write_section(console, "attempts")
    for attempt in attempts:
        style, ending = _ending(attempt)
        span = (now if attempt.ended_at is None else attempt.ended_at) - attempt.started_at
        line = Text.assemble(
            (f"{attempt.generation:>2}  ", "dim"),
            (_clock(attempt.started_at, now), "dim"),
            f"  {safe(attempt.worker)}  ",
            (ending, style),
            (f"  {time_text(max(0.0, span))}", "dim"),
        )
        write_block(console, line, "  ")


def _ending(attempt: Attempt) -> tuple[str, str]:
    """The style and the words for how an attempt ended."""
    if attempt.worker == CANCELLER:
        return "yellow", "cancelled it"
    endings = {
        "": ("cyan", "works on it"),
        "finished": ("green", "finished"),
        "released": ("", "let go of it"),
        "lost": ("yellow", "was lost"),
    }
    return endings.get(attempt.ending, ("", attempt.ending))


def write_artifacts(console: Console, artifacts: Sequence[Artifact]) -> None:
    """Name, size and kind of each, and the folder that they are in."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    for file in artifacts:
        name = Text.assemble(("  + ", "green"), safe(file.name))
        table.add_row(name, said_bytes(file.size), safe(file.mime))
    write_table(console, table)
    folder = folder_of(artifacts)
    write_block(console, Text.assemble(("files in ", "dim"), safe(str(folder))))


def write_section(console: Console, title: str, style: str = "bold") -> None:
    console.print()
    console.print(Text.assemble(("── ", "dim"), (title, style)))
