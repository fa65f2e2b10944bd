"""The store and the files that a command's settings name, and the job that a person means."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from worker.errors import InputInvalid, JobUnknown

if TYPE_CHECKING:
    from worker.following import Viewer
    from worker.settings import Settings
    from worker.store.base import Listed, Store, WorkerSeen
    from worker.store.blobs import Blobs

_KNOWN = 1000  # jobs among which a part of an id is looked for
_LEAST_PART = 4  # letters; with fewer the one job that there is may be meant by a slip
_NEAREST = 3

JobId = Annotated[
    str,
    typer.Argument(
        metavar="ID", show_default=False, help="A job's id; its beginning or end will do."
    ),
]


@dataclass(frozen=True, slots=True)
class Jobs:
    """Where jobs and their files are kept."""

    store: Store
    blobs: Blobs
    settings: Settings

    def find(self, text: str) -> Listed:
        """The one job that is meant. Raises `InputInvalid`, which names the nearest."""
        with suppress(JobUnknown):
            if text.isascii():  # as all ids are; not every text is one for a database
                return self.store.get(text)
        known = [found.job.id for found in self.store.jobs(limit=_KNOWN)]
        meant = [job_id for job_id in known if _is_part(text, job_id)]
        if len(meant) != 1:
            raise InputInvalid(_unknown(text, known, meant))
        return self.store.get(meant[0])

    def broker_fault(self, found: Iterable[Listed], workers: Iterable[WorkerSeen]) -> str:
        """Why workers do not hear of these jobs; asked only where it may be the reason."""
        from worker.following import hears_of_bells

        is_asked = not any(True for _ in workers) or any(map(hears_of_bells, found))
        return broker_fault(self.settings) if is_asked else ""


def _is_part(text: str, job_id: str) -> bool:
    is_enough = len(text) >= _LEAST_PART
    return is_enough and (job_id.startswith(text) or job_id.endswith(text))


def _unknown(text: str, known: Sequence[str], meant: Sequence[str]) -> str:
    import difflib

    if meant:
        more = f" and {len(meant) - _NEAREST} more" if len(meant) > _NEAREST else ""
        return f"{text!r} may be any of {', '.join(meant[:_NEAREST])}{more}"
    near = difflib.get_close_matches(text, known, n=_NEAREST)
    advice = f"did you mean {' or '.join(near)}?" if near else "caisson jobs lists those there are"
    return f"there is no job {text!r}; {advice}"


@contextmanager
def open_jobs(settings: Settings | None = None) -> Iterator[Jobs]:
    """Open the store and the blobs. Raises `StoreUnavailable` and `SchemaMismatch`."""
    from worker.settings import load_settings
    from worker.store.blobs import Blobs
    from worker.store.database import open_store
    from worker.terminal import Activity, make_console

    settings = settings or load_settings().settings
    with Activity(make_console(sys.stderr)).during_long("waiting for the database"):
        store = open_store(settings.database)
    try:
        yield Jobs(store, Blobs(settings.home / "blobs"), settings)
    finally:
        store.close()


def broker_fault(settings: Settings) -> str:
    """Why the broker takes no messages, in one line; empty: it does, or a worker must start it."""
    from worker.broker import EmbeddedBroker, is_embedded
    from worker.terminal import Activity, make_console

    if is_embedded(settings):
        return EmbeddedBroker(settings.home).fault() or ""
    with Activity(make_console(sys.stderr)).during_long("asking the broker"):
        from worker.celery_app import broker_fault as ask

        return ask(settings)


def follow(jobs: Jobs, job_id: str, viewer: Viewer) -> Listed | None:
    """Show a job until its end; None when somebody does not want to see it any longer."""
    from worker.following import Follower
    from worker.stopping import stoppable

    with stoppable() as is_stopped:
        follower = Follower(jobs.store, job_id, viewer, lambda: broker_fault(jobs.settings))
        return follower.follow(is_stopped)
