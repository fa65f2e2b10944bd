"""Removing containers that nobody owns any more: what is left of killed workers and lost engines.

It looks at containers with the label `caisson.job` only, and judges each by what it belongs to: a
job of our store, a job of another store (of which nothing can be known), or a process ("ad hoc").
A spare belongs to the job that lives in it by now. While none does it is left alone until it has
ended: a job may be moving in whose record does not say so yet, and whoever made it need not live.
In doubt a container stays: each ends by itself, without a host or at its maximum life, and then
costs a name and a little disk.

Ages are counted by the engine's clock, against the engine's own timestamps. Not covered: a
container whose labels somebody has forged; whoever can do that owns the engine anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sandbox.engine import Engine
from sandbox.errors import SandboxUnavailable
from sandbox.owner import is_owner_alive
from sandbox.types import Standing

UNDER_WAY_S = 60.0  # a sandbox is started before its job's record says so
FORGOTTEN_S = 600.0  # a stranger's leftovers
ORPHANED_S = 10.0
OVERDUE_S = 300.0
LIVE = ("running", "paused", "restarting")


@dataclass(frozen=True, slots=True)
class Reaped:
    """A container that was removed, or (`error`) could not be; `why` is for a person."""

    container: str
    name: str
    job: str
    why: str
    error: str = ""


class Register(Protocol):
    """What is known of the jobs of a store."""

    @property
    def identity(self) -> str:
        """Names the store among all."""

    def standing(self, job_ids: Sequence[str]) -> Mapping[str, Standing]:
        """Tell how jobs stand, by their ids; those unknown to the store are left out."""

    def tenants(self, places: Sequence[str]) -> Mapping[str, str]:
        """Tell which job lives in which sandbox, of the jobs that have not ended."""


def reap(
    engine: Engine,
    register: Register,
    now: Callable[[], float] = time.time,
    *,
    dry_run: bool = False,
) -> list[Reaped]:
    """Remove the containers of `engine` that nobody owns; returns them, with their reasons.

    Args:
        engine: Where to look.
        register: Tells what is known of jobs. Asked after the containers have been listed.
        now: The clock for an engine that does not tell its own.
        dry_run: Remove nothing, only say what would be.

    Raises:
        EngineUnavailable: The containers cannot even be listed.
    """
    found = [_Found(listed) for listed in engine.labelled("caisson.job")]
    ours = [one for one in found if one.store and one.store == register.identity]
    _find_tenants([one for one in ours if one.is_spare], register)
    jobs = sorted({one.job for one in ours if one.job})
    standings = dict(register.standing(jobs)) if jobs else {}
    judge = _Judge(engine, register.identity, standings, _clock(engine, now))
    reaped = []
    for one in found:
        why = judge.why_remove(one)
        if why is not None:
            error = "" if dry_run else _remove(engine, one)
            reaped.append(Reaped(one.id, one.name, one.job or "spare", why, error))
    return reaped


def _find_tenants(spares: Sequence[_Found], register: Register) -> None:
    """Name the jobs that live in spares; the others have none."""
    tenants = register.tenants([one.place for one in spares]) if spares else {}
    for one in spares:
        one.job = tenants.get(one.place, "")


class _Found:
    """One line of the engine's list."""

    def __init__(self, listed: Mapping[str, Any]) -> None:
        labels: Mapping[str, str] = listed["Labels"]
        self.id: str = listed["Id"]
        self.name = str((listed["Names"] or [self.id[:12]])[0]).removeprefix("/")
        self.place = self.id[:12]
        self.job = labels["caisson.job"]
        self.is_spare = "caisson.spare" in labels
        self.store = labels.get("caisson.store", "")
        self.owner = labels.get("caisson.owner", "")
        self.generation = int(labels.get("caisson.generation") or 0)
        self.is_live = listed["State"] in LIVE
        self.was_started = listed["State"] != "created"
        self.created = float(listed["Created"])
        self.deadline = self._deadline(labels)

    def _deadline(self, labels: Mapping[str, str]) -> float:
        """When it must have ended, by the engine's clock where that can be told."""
        try:
            if "caisson.max_life_s" in labels:
                return self.created + float(labels["caisson.max_life_s"])
            return float(labels["caisson.deadline"])
        except (KeyError, ValueError):  # not one that we know how to make
            return float("inf")


@dataclass(frozen=True, slots=True)
class _Judge:
    """Says of each container why it must go; None: it stays."""

    engine: Engine
    store: str
    standings: Mapping[str, Standing]
    now: float

    def why_remove(self, one: _Found) -> str | None:
        if one.store and one.store != self.store:
            return self._anothers(one)
        if self.now > one.deadline + OVERDUE_S:
            return "it has outlived its maximum life"
        if one.store and one.job:
            return self._ours(one)
        return self._vacant(one) if one.is_spare else self._ad_hoc(one)

    def _vacant(self, one: _Found) -> str | None:
        """A spare in which no job lives, as far as is stored; unowned, it ends by itself."""
        if one.is_live:
            return None  # a job may be moving in, though its maker is dead
        if is_owner_alive(one.owner) is False:
            return "its owner is gone"
        if self._has_ended_for(one, UNDER_WAY_S):  # its maker may believe that it was taken
            return "it has ended, and no job lives in it"
        return None

    def _ours(self, one: _Found) -> str | None:
        known = self.standings.get(one.job)
        if known is not None and known.is_over:
            return "its job is over"
        if self.now > one.created + UNDER_WAY_S and (why := self._why_misplaced(one, known)):
            return why
        if one.is_live or known is None:
            return None  # the next worker adopts it
        if not known.is_held:
            return "it has ended, and nobody works on its job"
        return "it has ended" if self._has_ended_for(one, UNDER_WAY_S) else None

    def _why_misplaced(self, one: _Found, known: Standing | None) -> str | None:
        if known is None:  # not stored yet, or in a store of which this one is a copy
            return None if one.is_live else "its job is unknown"
        if known.is_held and one.generation >= known.generation:
            return None  # the one who has the job is about to move into it
        if known.engine and known.engine != self.engine.identity():
            return "its job has moved to another engine"
        if known.place and known.place != one.place:
            return "its job is in another sandbox"
        return None

    def _anothers(self, one: _Found) -> str | None:
        if one.is_live or not self._has_ended_for(one, FORGOTTEN_S):
            return None
        is_nobodys = one.is_spare and is_owner_alive(one.owner) is False
        if self.now < one.deadline and not is_nobodys:
            return None
        return "another store has left it behind"

    def _ad_hoc(self, one: _Found) -> str | None:
        is_alive = is_owner_alive(one.owner)
        if is_alive is False:
            # A live guest notices as well, and ends without our help when nobody adopts it.
            is_due = not one.is_live or self.now > one.created + ORPHANED_S
            return "its owner is gone" if is_due else None
        if one.is_live or is_alive or not self._has_ended_for(one, FORGOTTEN_S):
            return None
        return "it ended long ago, and its owner is unknown"

    def _has_ended_for(self, one: _Found, least_s: float) -> bool:
        """Whether it ended, or was made and never started, more than `least_s` ago."""
        if self.now < one.created + least_s:
            return False
        if not one.was_started:
            return True
        state = self.engine.state(one.id)
        return state is not None and self.now > _seconds(state["FinishedAt"]) + least_s


def _remove(engine: Engine, one: _Found) -> str:
    """Remove a container; returns what went wrong."""
    try:
        engine.remove(one.id)
    except SandboxUnavailable as error:
        return str(error)
    return ""


def _clock(engine: Engine, now: Callable[[], float]) -> float:
    """The engine's own time; the host's may be another."""
    told = engine.describe().get("SystemTime")
    return _seconds(told) if told else now()


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
