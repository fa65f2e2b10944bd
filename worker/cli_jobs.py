"""The commands that look at queued jobs, end them, and take what they made."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli_options import AsJson, Exit, complain, exit_of, path, tell, whole
from worker.cli_store import JobId, Jobs, follow, open_jobs
from worker.cli_submit import stopped
from worker.errors import InputInvalid

if TYPE_CHECKING:
    from worker.history import History
    from worker.messages import Event, Job, Status, Wire
    from worker.store.base import Listed, WorkerSeen

_MOST_LISTED = 10_000
_CANCEL_S = 5.0
_CANCEL_POLL_S = 0.2


# ---- jobs


def jobs(
    *,
    status: Annotated[
        str | None, typer.Option(metavar="S", help="Only those that are queued, running, …")
    ] = None,
    limit: Annotated[str, typer.Option(metavar="N", help="How many, the newest first.")] = "20",
    as_json: AsJson = False,
) -> int:
    """List jobs, who works on them, and what others wait for."""
    wanted, most = _status(status), whole("--limit", limit, 1, _MOST_LISTED)
    with open_jobs() as opened:
        found = opened.store.jobs(wanted, most + 1)
        workers = opened.store.workers()
        fault = opened.broker_fault(found[:most], workers)
    if as_json:
        print(json.dumps([_listed(one, workers, fault) for one in found[:most]]), flush=True)
        return Exit.ANSWERED
    from worker.listing import workers_text, write_jobs
    from worker.terminal import make_console

    if found:
        write_jobs(make_console(), found[:most], workers, time.time(), fault)
        print()
    else:
        print(f"no job is {wanted}" if wanted else "no jobs yet; submit one: caisson submit GOAL")
    if len(found) > most:
        print("there are older ones; --limit N shows more")
    print(workers_text(workers, fault), flush=True)
    return Exit.ANSWERED


def _status(text: str | None) -> Status | None:
    from worker.messages import Status

    if text is None:
        return None
    try:
        return Status(text)
    except ValueError:
        raise InputInvalid(f"--status {text}: must be one of {', '.join(Status)}") from None


def _listed(found: Listed, workers: tuple[WorkerSeen, ...], broker_fault: str) -> Wire:
    """A job as programs are given it in a list."""
    from worker.following import waits_for

    job = found.job
    is_waiting = not found.is_held and not job.status.is_final
    return {
        "id": job.id,
        "status": job.status.value,
        "finish_reason": job.finish_reason.value if job.finish_reason else None,
        "goal": job.goal,
        "steps": job.steps,
        "priority": found.order.priority,
        "created_at": found.created_at,
        "ended_at": found.ended_at,
        "worker": found.worker if found.is_held else None,
        "waits_for": waits_for(found, workers, broker_fault) if is_waiting else None,
        "is_cancelling": found.is_cancelling,
    }


# ---- show


def show(job_id: JobId, *, as_json: AsJson = False) -> int:
    """Show all about a job but its trace (see watch)."""
    with open_jobs() as opened:
        found = opened.find(job_id)
        if as_json:
            print(json.dumps(found.job.summary()), flush=True)
            return Exit.ANSWERED
        attempts = opened.store.attempts(found.job.id)
        workers = opened.store.workers()
        is_over = found.job.status.is_final
        fault = "" if is_over else opened.broker_fault([found], workers)
    from worker.listing import note, write_job
    from worker.terminal import make_console

    write_job(make_console(), found, attempts, note(found, workers, fault), time.time())
    return Exit.ANSWERED


# ---- watch


def watch(
    job_id: JobId,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines: each event, at last the job.")
    ] = False,
) -> int:
    """Watch a job to its end; Ctrl-C ends the watching alone."""
    from worker.terminal import make_console
    from worker.trace import Trace

    with open_jobs() as opened:
        meant = opened.find(job_id).job.id
        whole = f"caisson watch {meant} --json has them"
        viewer = _Lines() if as_json else Trace(make_console(), whole)
        found = follow(opened, meant, viewer)
    if found is None:
        viewer.hide()
        return Exit.CLOSED if viewer.is_gone else stopped(meant)
    viewer.close(found.job)
    return exit_of(found.job, as_json=as_json)


class _Lines:
    """Prints a job for programs. A reader that goes away is an error of the output."""

    is_gone = False

    def on_event(self, event: Event, history: History) -> None:
        from pydantic_core import to_jsonable_python

        # Not pydantic's own JSON: it refuses surrogates and leaves control characters as they are.
        del history
        print(json.dumps(to_jsonable_python(event, inf_nan_mode="null")), flush=True)

    def on_standing(self, what: str, *, is_waiting: bool) -> None:
        """Programs ask `jobs` for it."""

    def on_change(self, what: str) -> None:
        """Programs see another generation."""

    def hide(self) -> None:
        """Nothing is left on the screen."""

    def close(self, job: Job) -> None:
        print(json.dumps({"kind": "job", "job": job.summary()}), flush=True)


# ---- cancel


def cancel(
    job_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...", show_default=False, help="Ids of jobs; a beginning or end will do."
        ),
    ],
    *,
    as_json: AsJson = False,
) -> int:
    """End jobs that wait or run; says how each ended."""
    with open_jobs() as opened:
        asked = {found.job.id: found for found in _all_of(opened, job_ids)}
        over = [found for found in asked.values() if found.job.status.is_final]
        _cancel(opened, [i for i, found in asked.items() if found not in over])
        now = [opened.store.get(job_id) for job_id in asked]
    if as_json:
        print(json.dumps([found.job.summary() for found in now]), flush=True)
    else:
        _write_cancelled([found for found in now if found.job.id not in {o.job.id for o in over}])
    return _too_late([found.job for found in over])


def _all_of(opened: Jobs, job_ids: list[str]) -> list[Listed]:
    """The jobs that are meant; one that is not there stops all."""
    from worker.errors import InputInvalid

    try:
        return [opened.find(job_id) for job_id in job_ids]
    except InputInvalid as error:
        others = "; none of the others is cancelled" if len(job_ids) > 1 else ""
        raise InputInvalid(f"{error}{others}") from None


def _cancel(opened: Jobs, job_ids: list[str]) -> None:
    """Ask for the end of all, then wait for those that a worker has to end."""
    import sys

    from worker import cancelling
    from worker.terminal import Activity, make_console

    left = {job_id for job_id in job_ids if not cancelling.cancel(opened.store, job_id).is_final}
    until = time.monotonic() + _CANCEL_S
    with Activity(make_console(sys.stderr)).during_long("waiting for the worker to end it"):
        while left and time.monotonic() < until:
            time.sleep(_CANCEL_POLL_S)
            left = {i for i in left if not opened.store.get(i).job.status.is_final}


def _write_cancelled(found: list[Listed]) -> None:
    from worker.listing import status_text
    from worker.messages import Status
    from worker.terminal import make_console

    console = make_console()
    for one in found:
        line = status_text(one.job.status)
        if one.job.status is not Status.CANCELLED:
            line = line.append(_said_ending(one))
        console.print(line.append(f"  {one.job.id}"), soft_wrap=True)


def _said_ending(found: Listed) -> str:
    if found.job.status.is_final:
        return " before it could be cancelled"
    if found.is_held:
        from worker.terminal import safe

        return f", asked to end; {safe(found.worker)} has not done so yet"
    return ", asked to end; its worker was lost, the next one will end it"


def _too_late(jobs: list[Job]) -> Exit:
    """Say which jobs were over before. One that was cancelled before is what was wanted."""
    from worker.messages import Status

    late = [job for job in jobs if job.status is not Status.CANCELLED]
    if len(late) < len(jobs):
        tell("; ".join(f"job {job.id} is cancelled already" for job in jobs if job not in late))
    said = "; ".join(f"job {job.id} is over: {job.status}" for job in late)
    return complain(said, Exit.USAGE) if late else Exit.ANSWERED


# ---- artifacts


def artifacts(
    job_id: JobId,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", parser=path, help="Copy them into this folder."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """List the files that a job made, or copy them."""
    from worker.copying import copy_out

    with open_jobs() as opened:
        found = opened.find(job_id)
        made = found.job.artifacts
        if to is not None:
            made = copy_out(made, to, opened.blobs, overwrite=overwrite)
    if as_json:
        shown = found.job.model_copy(update={"artifacts": made}).summary()["artifacts"]
        print(json.dumps(shown), flush=True)
        return Exit.ANSWERED
    from worker.listing import write_artifacts
    from worker.terminal import make_console

    if made:
        write_artifacts(make_console(), made)
    else:
        tail = "" if found.job.status.is_final else " yet"
        print(f"job {found.job.id} has no artefacts{tail}", flush=True)
    return Exit.ANSWERED


# ---- db


def upgrade(*, as_json: AsJson = False) -> int:
    """Bring the database to the schema of this version; what is stored stays."""
    import sys

    from worker.settings import load_settings
    from worker.store.database import upgrade as bring
    from worker.terminal import Activity, make_console

    settings = load_settings().settings
    with Activity(make_console(sys.stderr)).during_long("upgrading the database"):
        before, after = bring(settings.database)
    if as_json:
        print(json.dumps({"before": before or None, "after": after}), flush=True)
    elif before == after:
        print(f"the database has the schema of this version already ({after})", flush=True)
    else:
        print(f"the database went from {before or 'nothing'} to {after}", flush=True)
    return Exit.ANSWERED
