"""What is known of a job whose workers were lost, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from worker.errors import Infrastructure
from worker.history import History
from worker.messages import Event, Job
from worker.sizes import said_bytes
from worker.store.base import Attempt


class WorkersLost(Infrastructure):
    """Every worker that took the job was lost before it got anywhere."""


def post_mortem(
    job: Job, events: Iterable[Event], attempts: Sequence[Attempt], losses: int, cap: int
) -> str:
    """Say in one line what was going on when the workers were lost, and what they had left.

    The last of `attempts` is whoever asks. What was lost after the first `cap` came only to bury
    the job, as the last one does: neither they nor what they wrote is told of.
    """
    lost, buries = attempts[-losses - 1 :][:cap], attempts[cap - losses - 1]
    history = History(job, (event for event in events if event.at < buries.started_at))
    workers = "1 worker was" if cap == 1 else f"{cap} workers in a row were"
    parts = [f"{workers} lost while working on it", _doing(history)]
    return "; ".join([*parts, *map(_figures, lost)])


def _doing(history: History) -> str:
    turn = history.last
    begun = [call for call in turn.pending if call.id in turn.begun]
    if begun:
        number, at = history.number(begun[0].id), _time(turn.begun[begun[0].id].at)
        return f"each time in call {number} ({begun[0].name}), which was first begun at {at}"
    what = "running its calls" if turn.is_open else "asking the model"
    return f"each time after step {history.job.steps}, while {what}"


def _figures(attempt: Attempt) -> str:
    said = [f"{attempt.worker} from {_time(attempt.started_at)}"]
    if attempt.ended_at is not None:
        said.append(f"for {attempt.ended_at - attempt.started_at:.0f} s")
    if (rss := attempt.figures.get("rss_bytes")) is not None:
        said.append(f"with {said_bytes(rss)}")
    if (free := attempt.figures.get("host_free_bytes")) is not None:
        said.append(f"and {said_bytes(free)} free on its host")
    return " ".join(said)


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
