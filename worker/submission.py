"""Put a job into the store: check it as if it ran here, keep its files, write down what was asked.

A worker needs nothing from whoever submitted it but the store and the blobs: files and recordings
are copied, and what was chosen for the job goes with it. Only mounts are read where the worker is.
"""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import BinaryIO

from pydantic import Field, ValidationError

from worker import assembly
from worker.assembly import InputFile
from worker.errors import Cancelled, InputInvalid
from worker.messages import Input, Order, Record, Wire
from worker.models.recorded import read_recording, replies_in
from worker.reading import open_plain
from worker.runner import new_job
from worker.settings import Settings
from worker.store.base import Store
from worker.store.blobs import Blob, Blobs

_LONGEST_KEY = 200
_PIPE_S = 60.0  # for a recording that comes through a pipe


class Submission(Record):
    """What somebody wants done by a worker."""

    goal: str
    files: tuple[Path, ...] = ()
    mounts: tuple[Path, ...] = ()
    replay: Path | None = None
    id: str | None = Field(None, description="default: a new one")
    key: str | None = Field(None, description="a second submission with it is the same job")
    priority: int = Field(0, description="-100 to 100, higher is sooner")
    deliver: Wire | None = Field(None, description="whom a pipeline wants told of the end")
    options: Wire = Field(default_factory=dict, description="settings that were chosen for it")


def submit(what: Submission, settings: Settings, store: Store, blobs: Blobs) -> str:
    """Keep a job and all it needs; returns its id, or that of the job with the same key.

    Raises `UsageError` and `sandbox.errors.SpecInvalid` for what was asked; `StoreUnavailable`, and
    then there is no job; `JobExists`.
    """
    _check_words(what)
    own = settings.overlaid(what.options)
    job = new_job(what.goal, own, replay=what.replay, job_id=what.id)
    assembly.read_mounts(what.mounts, own)
    files = assembly.check_files(what.files, own.limits())
    limits = own.spec(job.id).limits
    order = _order(
        options={**own.settled(), **what.options},
        mounts=tuple(str(path.absolute()) for path in what.mounts),
        key=what.key,
        priority=what.priority,
        memory_bytes=limits.memory_bytes,
        cpus=limits.cpus,
        deliver=what.deliver,
    )
    kept = {
        "replay": _keep_recording(what.replay, blobs) if what.replay else None,
        "inputs": tuple(_keep(file, blobs) for file in files),
    }
    return store.create(job, order.model_copy(update=kept))


def _order(**fields: object) -> Order:
    try:
        return Order.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, given = first["loc"][0], first["input"]
        raise InputInvalid(f"{name} {given}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _check_words(what: Submission) -> None:
    """Refuse what no database can keep, and a key that cannot have been meant."""
    named = [("goal", what.goal), ("idempotency key", what.key or "")]
    named += [("path", str(path)) for path in (*what.files, *what.mounts)]
    for name, text in named:
        if "\0" in text or not _is_unicode(text):
            raise InputInvalid(f"the {name} {text!r} has bytes that are not text in UTF-8")
    if what.key is not None and not 0 < len(what.key.strip()) <= _LONGEST_KEY:
        raise InputInvalid(f"an idempotency key has 1 to {_LONGEST_KEY} characters")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # how Python writes the bytes of a command line that are no text
        return False
    return True


def _keep_recording(path: Path, blobs: Blobs) -> str:
    until = time.monotonic() + _PIPE_S
    try:
        data = read_recording(path, lambda: time.monotonic() > until)
    except Cancelled:
        raise InputInvalid(f"the recording {path} did not end within {_PIPE_S:.0f} s") from None
    replies_in(data, path)
    return blobs.add(io.BytesIO(data)).sha256


def _keep(file: InputFile, blobs: Blobs) -> Input:
    """Copy an input file. Raises `InputInvalid` for one that changes meanwhile."""
    try:
        with open_plain(file.path) as source:
            before = _state(source)
            blob = blobs.add(source)
            _check_unchanged(file, blob, before, _state(source))
    except OSError as error:
        raise InputInvalid(f"cannot read {file.path}: {error.strerror or error}") from error
    return Input(name=file.name, size=blob.size, sha256=blob.sha256, header=file.header)


def _state(source: BinaryIO) -> tuple[int, int]:
    status = os.fstat(source.fileno())
    return status.st_size, status.st_mtime_ns


def _check_unchanged(
    file: InputFile, blob: Blob, before: tuple[int, int], after: tuple[int, int]
) -> None:
    if before != after or blob.size != before[0] or file.size != before[0]:
        raise InputInvalid(
            f"{file.path} changed while it was read; submit it when nobody writes to it, "
            "or give a copy"
        )
