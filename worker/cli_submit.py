"""`caisson submit`: put a job into the store, wake a worker, and wait for the end if asked to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli_options import (
    AsJson,
    Exit,
    Files,
    Goal,
    JobTimeout,
    MaxSteps,
    Memory,
    Model,
    Mounts,
    Record,
    Replay,
    Schema,
    complain,
    exit_of,
    read_schema,
    tell,
    whole,
)
from worker.cli_store import Jobs, follow, open_jobs
from worker.errors import InputInvalid

if TYPE_CHECKING:
    from worker.settings import Settings
    from worker.store.base import Listed, Store
    from worker.submission import Submission


Wait = Annotated[
    bool, typer.Option("--wait", help="Wait for the end; the exit codes are those of run.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key", metavar="KEY", help="A second submission with it is the same job."
    ),
]
Priority = Annotated[str, typer.Option(metavar="N", help="-100 to 100; higher is sooner.")]


def submit(
    goal: Goal,
    *,
    file: Files = None,
    mount: Mounts = None,
    model: Model = None,
    replay: Replay = None,
    record: Record = None,
    max_steps: MaxSteps = None,
    timeout: JobTimeout = None,
    memory: Memory = None,
    schema: Schema = None,
    wait: Wait = False,
    key: Key = None,
    priority: Priority = "0",
    as_json: AsJson = False,
) -> int:
    """Let a worker work on GOAL, now or later; print the job's id."""
    from worker.runner import new_job_id
    from worker.settings import load_settings
    from worker.submission import Submission

    _check_asked(model, replay, record, wait=wait)
    loaded = load_settings(
        {
            "model": model,
            "max_steps": max_steps,
            "job_timeout_s": timeout,
            "memory": memory,
            "answer_schema": read_schema(schema),
        }
    )
    what = Submission(
        goal=goal,
        files=tuple(file or ()),
        mounts=tuple(mount or ()),
        replay=replay,
        id=new_job_id(),
        key=key,
        priority=whole("--priority", priority, -100, 100),
        options=loaded.chosen(),
    )
    if replay is None and not loaded.settings.model:
        tell("no model is chosen here (CAISSON_MODEL or --model): the worker's own will be asked")
    with open_jobs(loaded.settings) as jobs:
        job_id, is_rung = _submit(what, loaded.settings, jobs)
        if wait:
            return _wait(jobs, job_id, record, as_json=as_json)
        _say(jobs, jobs.store.get(job_id), is_rung=is_rung, as_json=as_json)
    return Exit.ANSWERED


def _check_asked(
    model: str | None, replay: Path | None, record: Path | None, *, wait: bool
) -> None:
    from worker.models.recording import check_writable

    if model is not None and replay is not None:
        raise InputInvalid("--model and --replay exclude each other; leave one of them out")
    if record is None:
        return
    if not wait:
        raise InputInvalid("--record needs --wait: the recording is written when the job is over")
    if replay is not None and record.resolve() == replay.resolve():
        raise InputInvalid(f"{record}: cannot be replayed and recorded at once")
    check_writable(record)


def _submit(what: Submission, settings: Settings, jobs: Jobs) -> tuple[str, bool]:
    """Keep the job and ring for a worker; returns its id, and whether no broker was in the way."""
    from worker.celery_app import NoWorker, ring
    from worker.errors import BrokerUnavailable
    from worker.submission import submit as keep
    from worker.terminal import Activity, make_console

    activity = Activity(make_console(sys.stderr))
    with activity.during_long("keeping what the job needs"):
        job_id = keep(what, settings, jobs.store, jobs.blobs)
    if job_id != what.id:
        tell(f"job {job_id} has this idempotency key already; nothing new was submitted")
        return job_id, True
    try:
        with activity.during_long("ringing for a worker"):
            ring(settings)
    except NoWorker:  # which is said in other words
        return job_id, True
    except BrokerUnavailable as error:
        tell(f"the job is stored, and a worker will find it; {error}")
        return job_id, False
    except KeyboardInterrupt:
        tell(f"the job is stored; end it with: caisson cancel {job_id}")
        raise
    return job_id, True


def _say(jobs: Jobs, found: Listed, *, is_rung: bool, as_json: bool) -> None:
    """Print the id, and beside it how the job stands and what a person may do next.

    Where the broker was in the way, that was said, and no worker is to blame.
    """
    from worker.listing import note

    job, workers = found.job, jobs.store.workers()
    if as_json:
        print(json.dumps(job.summary()), flush=True)
        if is_rung and not workers and not job.status.is_final:
            tell(note(found, workers))
        return
    print(job.id, flush=True)
    if job.status.is_final:
        tell(f"it is over: {job.status}; look at it: caisson show {job.id}")
    else:
        standing = f"{note(found, workers)}; " if is_rung else ""
        tell(f"{standing}watch it: caisson watch {job.id}")


def _wait(jobs: Jobs, job_id: str, record: Path | None, *, as_json: bool) -> int:
    from worker.terminal import make_console
    from worker.trace import Glance, Trace

    if not as_json:
        tell(f"job {job_id}; Ctrl-C ends the waiting, not the job")
    glance = Glance(make_console(sys.stderr))
    found = follow(jobs, job_id, glance)
    if found is None:
        glance.hide()
        return stopped(job_id)
    glance.close(found.job)
    if record is not None:
        _write_recording(jobs.store, job_id, record)
    if as_json:
        print(json.dumps(found.job.summary()), flush=True)
    else:
        Trace(make_console()).close(found.job)
    return exit_of(found.job, as_json=as_json)


def stopped(job_id: str) -> Exit:
    """Say what becomes of a job that nobody waits for any more."""
    return complain(f"the job goes on; end it with: caisson cancel {job_id}", Exit.CANCELLED)


def _write_recording(store: Store, job_id: str, target: Path) -> None:
    from worker.errors import Infrastructure
    from worker.messages import ReplyAdded
    from worker.models.recording import line_of

    replies = (event for event in store.events(job_id) if isinstance(event, ReplyAdded))
    try:
        with target.open("w", encoding="utf-8") as lines:
            lines.writelines(line_of(event.reply) for event in replies)
    except OSError as error:
        raise Infrastructure(f"cannot write the recording {target}: {error.strerror}") from error
