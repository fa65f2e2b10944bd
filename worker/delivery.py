"""How a job stands in a pipeline: what it gives to the next task, and how the pipeline goes on.

A task that stands for a job ends without a result, so that it holds no worker while the job runs;
what is needed to go on (its id, and what comes after it) is kept with the job. When the job has
ended, a second task of the same id takes the place of the first: to Celery they are one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from celery.result import denied_join_result
from kombu.connection import Connection
from kombu.utils import json as kombu_json
from pydantic import Field

from worker.celery_app import COLLECT, PIPELINE, RUN, app
from worker.errors import CaissonError
from worker.messages import Job, Record, Status, Wire

_MOST_CHARS = 2000  # of a failure's message
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OFFSETS = 2**62  # that a lock may have in a file
# What belongs to one message, not to the place of a task in a pipeline.
_NOT_KEPT = frozenset({"expires", "retries", "reply_to", "soft_time_limit", "time_limit", "origin"})


# Of the message that tells an end: the job whose pipeline it is, for whoever drops the message.
JOB_HEADER = "caisson_job"


class JobFailed(CaissonError):
    """A job of a pipeline ended without an answer; the text says which job and why."""


class Reference(Record):
    """Where the whole of a result is."""

    job: str = Field(description="`caisson show` has it")
    bytes: int = Field(description="size of the whole as JSON")


class JobResult(Record):
    """What a pipeline is given: the job as programs see it, of a bounded size."""

    id: str
    status: Status
    finish_reason: str | None
    answer: str | None
    steps: int
    usage: Wire
    artifacts: tuple[Wire, ...]
    error: Wire | None
    reference: Reference | None = Field(None, description="set when something was left out")


def result_of(job: Job, most_bytes: int) -> Wire:
    """The result as JSON of at most `most_bytes`: what is too long becomes its beginning."""
    whole = JobResult.model_validate(job.summary()).model_dump(mode="json")
    size = _size(whole)
    if size <= most_bytes:
        return whole
    cut = {**whole, "reference": {"job": job.id, "bytes": size}}
    if whole["error"] is not None:
        cut["error"] = {**whole["error"], "message": _head(whole["error"]["message"], 256)}
    # Names of files are worth more than the end of an answer, but must leave room for one.
    kept = {**cut, "answer": None, "artifacts": []}
    cut["artifacts"] = _first(whole["artifacts"], (most_bytes - _size(kept)) // 2)
    kept = {**cut, "answer": ""}
    cut["answer"] = _head(whole["answer"], most_bytes - _size(kept))
    return cut


def failure_of(job: Job) -> str:
    """Why a job has no answer, in one line."""
    why = job.error.message if job.error else "it has no answer"
    how = f"{job.status}, {job.finish_reason}" if job.finish_reason else str(job.status)
    return " ".join(f"job {job.id} ({how}): {why}".split())[:_MOST_CHARS]


def _size(value: object) -> int:
    return len(json.dumps(value))


def _first(files: list[Wire], most_bytes: int) -> list[Wire]:
    kept: list[Wire] = []
    for file in files:
        if _size([*kept, file]) > most_bytes:
            break
        kept.append(file)
    return kept


def _head(text: str | None, most_bytes: int) -> str | None:
    """The longest beginning of a text that is no more than so many bytes longer than none."""
    if text is None or _size(text) - _size("") <= most_bytes:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _size(text[:middle]) - _size("") <= most_bytes:
            low = middle
        else:
            high = middle - 1
    return text[:low]


# ---- how the pipeline goes on


def place_of(request: Any, *, raise_on_failure: bool) -> Wire:  # noqa: ANN401 - Celery's
    """A task's place in its pipeline, as plain JSON."""
    options = {
        name: value
        for name, value in request.as_execution_options().items()
        if name not in _NOT_KEPT and value not in (None, [], {})
    }
    if request.ignore_result:
        options["ignore_result"] = True
    plain: Wire = json.loads(kombu_json.dumps(options))  # type: ignore[no-untyped-call]
    return {"options": plain, "raise_on_failure": raise_on_failure}


def job_id_of(task_id: str) -> str:
    """The id of the job that a task makes: its own, where that can be the id of a job."""
    if _JOB_ID.fullmatch(task_id):
        return task_id
    return f"task-{hashlib.sha256(task_id.encode(errors='surrogatepass')).hexdigest()[:32]}"


def task_of(place: Wire | None) -> str | None:
    """The id of the task that waits."""
    return None if place is None else str(place["options"]["task_id"])


def tell(connection: Connection, job_id: str, place: Wire, *, is_shared: bool = False) -> None:
    """Send the task that goes on with a pipeline when the job has ended.

    `is_shared`: the job is another's, whose pipeline is told apart from this one.
    """
    options = {name: value for name, value in place["options"].items() if name != "shadow"}
    headers = {**(options.pop("headers", None) or {}), JOB_HEADER: "" if is_shared else job_id}
    with denied_join_result():  # else the result would be listened for, here
        app.send_task(
            COLLECT,
            (job_id,),
            {"raise_on_failure": place["raise_on_failure"], "is_shared": is_shared},
            queue=PIPELINE,
            connection=connection,
            add_to_parent=False,
            shadow=RUN,
            headers=headers,
            **options,
        )


class Turn:
    """The turn of one process to say the end of a task: two at once might both go on with it.

    It is a locked byte of a file, so nothing is left behind, not even by a process that is killed.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    def take(self, home: Path, task_id: str) -> None:
        """Wait for the turn, and keep it until `leave`."""
        self.leave()
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(home / "ends.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        digest = hashlib.sha256(task_id.encode(errors="surrogatepass")).digest()
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, int.from_bytes(digest[:8]) % _OFFSETS)

    def leave(self) -> None:
        """Let the next one have it. Safe to call twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
