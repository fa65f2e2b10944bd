"""Follow a job that others work on: what was stored of it, and what goes on in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Event as Flag
from typing import Protocol

from worker.errors import StoreUnavailable
from worker.history import History
from worker.messages import Event, Status
from worker.store.base import Attempt, Listed, Store, WorkerSeen

CANCELLER = "cancel"  # who claims a job only to end it
_POLL_S = 0.25
_PATIENCE_S = 60.0  # for a store that is away: a server may only be starting anew
_ASK_S = 5.0  # how often a broker is asked whether it answers
_ASK_AFTER_S = 1.0  # most jobs are taken at once
_NO_WORKER = "a worker; none runs (caisson worker starts one)"


class Viewer(Protocol):
    """Whom a job is shown to. What these raise ends the following."""

    @property
    def is_gone(self) -> bool:
        """Nobody looks any more."""

    def on_event(self, event: Event, history: History) -> None:
        """Take the next event; `history` includes it."""

    def on_standing(self, what: str, *, is_waiting: bool) -> None:
        """Take what goes on since the last event, or what the job waits for."""

    def on_change(self, what: str) -> None:
        """Another worker has the job now."""


@dataclass
class Follower:
    """Shows one job from its first event to its last; reads no event twice.

    `ask_broker` says why the broker takes no messages; it may take its time.
    """

    store: Store
    job_id: str
    viewer: Viewer
    ask_broker: Callable[[], str] = str
    poll_s: float = _POLL_S
    patience_s: float = _PATIENCE_S
    _seen: int = 0
    _told: tuple[int, str] = (0, "")
    _attempts: tuple[Attempt, ...] = ()
    _named: int = 1  # attempts that need no more words; the first never does
    _away_since: float | None = None
    _fault: str = ""  # of the broker
    _ask_at: float = field(default_factory=lambda: time.monotonic() + _ASK_AFTER_S)
    _history: History = field(init=False)

    def follow(self, is_stopped: Flag) -> Listed | None:
        """Show all that happens until the job is over; None: stopped before, or nobody looks.

        Raises `JobUnknown`, and `StoreUnavailable` for a store that stays away.
        """
        # In this order: of a job that is over by then, all events are read after it.
        listed: Listed = self.store.get(self.job_id)
        job, events = self.store.load(self.job_id)
        self._history = History(job)
        while True:
            self._show(listed, events)
            if listed.job.status.is_final:
                return listed
            if self.viewer.is_gone or is_stopped.wait(self.poll_s):
                return None
            listed, events = self._look(listed)

    def _look(self, last: Listed) -> tuple[Listed, tuple[Event, ...]]:
        try:
            listed = self.store.get(self.job_id)
            events = self.store.events(self.job_id, after=self._seen)
        except StoreUnavailable:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > self.patience_s:
                raise
            return last, ()
        self._away_since = None
        return listed, events

    def _show(self, listed: Listed, events: Sequence[Event]) -> None:
        try:
            if listed.generation > len(self._attempts):
                self._attempts = self.store.attempts(self.job_id)
            standing, is_waiting = self._standing(listed, events)
        except StoreUnavailable:  # `_look` meets it too, and counts how long
            standing, is_waiting = "the database does not answer", True
        for event in events:
            self._name_workers(event.at)
            self._history.add(event)
            self._seen += 1
            self.viewer.on_event(event, self._history)
        if not listed.job.status.is_final:
            self._name_workers(float("inf"))
            self._tell(standing or doing(self._history), is_waiting=is_waiting)

    def _standing(self, listed: Listed, events: Sequence[Event]) -> tuple[str, bool]:
        """What the job waits for; nothing when it is being worked on."""
        if self._away_since is not None:
            return "the database does not answer", True
        if listed.is_held or events or listed.job.status.is_final:
            return "", False
        fault = self._broker_fault() if hears_of_bells(listed) else ""
        return f"it waits for {waits_for(listed, self.store.workers(), fault)}", True

    def _broker_fault(self) -> str:
        if time.monotonic() >= self._ask_at:
            self._fault = self.ask_broker()
            self._ask_at = time.monotonic() + _ASK_S
        return self._fault

    def _tell(self, what: str, *, is_waiting: bool) -> None:
        if (self._seen, what) != self._told:
            self._told = (self._seen, what)
            self.viewer.on_standing(what, is_waiting=is_waiting)

    def _name_workers(self, until: float) -> None:
        """Name the workers that took over before that time (clocks may differ a little)."""
        while self._named < len(self._attempts):
            before, now = self._attempts[self._named - 1 : self._named + 1]
            if now.started_at > until:
                return
            self._named += 1
            if now.worker != CANCELLER:
                self.viewer.on_change(_said_change(before, now))


def _said_change(before: Attempt, now: Attempt) -> str:
    if before.ending == "lost":
        return f"worker {before.worker} was lost; {now.worker} goes on"
    return f"worker {before.worker} has let go; {now.worker} goes on"


def doing(history: History) -> str:
    """What is being done about a job that a worker has."""
    if history.job.status.is_final:
        return "its files are put away"
    if not history.place:
        return "a sandbox starts"
    turn = history.last
    if not turn.is_open:
        return "the model thinks"
    begun = [call.name for call in turn.pending if call.id in turn.begun]
    return f"{begun[0]} runs" if begun else "a call is about to run"


def hears_of_bells(listed: Listed) -> bool:
    """Whether a job waits for no more than a worker, which a broker has to tell."""
    is_over = listed.is_held or listed.job.status.is_final
    return not is_over and listed.job.status is not Status.WAITING and not listed.waits_for


def waits_for(listed: Listed, workers: Iterable[WorkerSeen], broker_fault: str = "") -> str:
    """Why nobody works on a job that is not over, in a few words."""
    if listed.job.status is Status.WAITING:
        return "a decision"
    if listed.waits_for:
        return listed.waits_for
    if broker_fault:
        return f"the broker; {broker_fault}"
    if not any(True for _ in workers):
        return _NO_WORKER
    return "another worker; its own was lost" if listed.job.status is Status.RUNNING else "a worker"
