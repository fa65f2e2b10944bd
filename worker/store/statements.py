"""What is asked of the database and told to it: every statement has a name here.

Statements are made once: building one takes longer than SQLite needs to run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Table,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement

from worker.messages import Status
from worker.store.tables import AnyText, artifacts, attempts, events, jobs, orders, workers

DIALECTS = ("sqlite", "postgresql")
_Insert = sqlite.Insert | postgresql.Insert
_INSERT: dict[str, Callable[[Table], _Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


class clock(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """The database's own time, in seconds since 1970. It goes on within a transaction."""

    type = Double()
    inherit_cache = True
    name = "clock"


@compiles(clock, "sqlite")
def _sqlite_clock(_element: clock, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401
    # unixepoch('subsec') would say it directly, and says NULL before SQLite 3.42.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(clock, "postgresql")
def _postgresql_clock(_element: clock, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401
    return "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"


NOW = clock()


def _text(name: str) -> ColumnElement[str]:
    return bindparam(name, type_=AnyText)


def _number(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=Integer)


def _size(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=BigInteger)


def _seconds(name: str) -> ColumnElement[float]:
    return bindparam(name, type_=Double)


THIS_JOB = jobs.c.id == _text("of_job")
_OWNED = (
    THIS_JOB & (jobs.c.generation == _number("of_generation")) & jobs.c.lease_until.is_not(None)
)
_THIS_ATTEMPT = (attempts.c.job_id == _text("of_job")) & (
    attempts.c.generation == _number("of_generation")
)
_OPEN = jobs.c.ended_at.is_(None)
_FREE = jobs.c.lease_until.is_(None) | (jobs.c.lease_until <= NOW)
_HELD = jobs.c.lease_until.is_not(None) & (jobs.c.lease_until > NOW)
DUE = _OPEN & _FREE


def _keep_artifact(dialect: str) -> _Insert:
    """Add an artefact; one of the same name is replaced, and stays where it is among the others."""
    added = _INSERT[dialect](artifacts)
    names = ("source", "sha256", "size", "mime", "path")
    return added.on_conflict_do_update(
        index_elements=["job_id", "name"], set_={name: added.excluded[name] for name in names}
    )


def _see(dialect: str) -> _Insert:
    added = _INSERT[dialect](workers).values(seen_at=NOW)
    return added.on_conflict_do_update(
        index_elements=["name"], set_={"seen_at": NOW, "body": added.excluded.body}
    )


# ---- whoever submits and looks

ADD_JOB = {
    name: _INSERT[name](jobs)
    .values(created_at=NOW, updated_at=NOW)
    .on_conflict_do_nothing()
    .returning(jobs.c.id)
    for name in DIALECTS
}
ADD_ORDER = insert(orders)
BY_KEY = select(jobs.c.id).where(jobs.c.key == _text("of_key"))
IS_KNOWN = select(exists().where(THIS_JOB))
ORDERED = select(orders.c.job, orders.c.asked).where(orders.c.job_id == _text("of_job"))
EVENTS = (
    select(events.c.kind, events.c.at, events.c.body)
    .where(events.c.job_id == _text("of_job"), events.c.number > _number("after"))
    .order_by(events.c.number)
)
LISTED = select(jobs, orders.c.job, orders.c.asked, _HELD.label("is_held")).join(
    orders, orders.c.job_id == jobs.c.id
)
ONE = LISTED.where(THIS_JOB)
NEWEST = LISTED.order_by(jobs.c.number.desc()).limit(_number("most"))
NEWEST_OF = NEWEST.where(jobs.c.status == _text("of_status"))
ARTIFACTS = (
    select(artifacts).where(artifacts.c.job_id == _text("of_job")).order_by(artifacts.c.position)
)
ATTEMPTS = (
    select(*(column for column in attempts.c if column.name != "job_id"))
    .where(attempts.c.job_id == _text("of_job"))
    .order_by(attempts.c.generation)
)
CANCEL = update(jobs).where(THIS_JOB, _OPEN).values(is_cancelling=True)
IS_CANCELLING = select(jobs.c.is_cancelling).where(THIS_JOB)

# ---- a claim

_CLAIMED = select(
    *(jobs.c.id, jobs.c.generation, jobs.c.lease_until, jobs.c.worker),
    *(jobs.c.status, jobs.c.ended_at, _HELD.label("is_held")),
)
TO_CLAIM = _CLAIMED.where(THIS_JOB).with_for_update()
# What another worker is just taking is no longer due: it is not waited for.
TO_CLAIM_IF_DUE = _CLAIMED.where(THIS_JOB, DUE).with_for_update(skip_locked=True)
CLAIM = (
    update(jobs)
    .where(THIS_JOB)
    .values(
        generation=jobs.c.generation + 1,
        losses=jobs.c.losses + case((jobs.c.lease_until.is_(None), 0), else_=1),
        lease_until=NOW + _seconds("lease_s"),
        status=Status.RUNNING.value,
        worker=_text("by_worker"),
        engine=func.coalesce(_text("on_engine"), jobs.c.engine),
        waits_for="",
    )
    .returning(jobs.c.generation, jobs.c.losses, jobs.c.lease_until)
)
ADD_ATTEMPT = insert(attempts).values(started_at=NOW)
LOSE_ATTEMPT = (
    update(attempts).where(_THIS_ATTEMPT).values(ending="lost", ended_at=_seconds("when_ended"))
)

# ---- the job that is due

_ELSEWHERE = (
    (jobs.c.place != "")
    & jobs.c.engine.not_in(["", _text("on_engine")])
    & (
        (jobs.c.updated_at > NOW - _seconds("preferred_s"))
        | (func.coalesce(jobs.c.lease_until, 0.0) > NOW - _seconds("preferred_s"))
    )
)
RESERVED = select(
    cast(func.coalesce(func.sum(jobs.c.memory_bytes), 0), BigInteger),
    cast(func.coalesce(func.sum(jobs.c.cpus), 0.0), Double),
).where(_HELD, jobs.c.engine == _text("on_engine"))
CANDIDATES = (
    select(
        *(jobs.c.id, jobs.c.memory_bytes, jobs.c.cpus, jobs.c.waits_for),
        (NOW - jobs.c.created_at).label("age_s"),
    )
    .where(DUE, ~_ELSEWHERE)
    .order_by(jobs.c.priority.desc(), jobs.c.number)
    .limit(_number("most"))
)
FITTING = CANDIDATES.where(
    jobs.c.memory_bytes <= _size("room_bytes"),
    jobs.c.cpus <= _seconds("room_cpus"),
)
_PASSED = select(jobs.c.id).where(jobs.c.id.in_(bindparam("passed", expanding=True)), DUE)
EXPLAIN = (
    update(jobs)
    .where(jobs.c.id.in_(_PASSED.with_for_update(skip_locked=True)))
    .values(waits_for=_text("why"))
)
ADMIT = func.pg_advisory_xact_lock(_number("purpose"), _number("engine_hash"))

# ---- whoever holds it

# Columns that an event sets are added to these by their names, when they are executed.
ADVANCE = (
    update(jobs)
    .where(_OWNED)
    .values(events=jobs.c.events + 1, updated_at=NOW)
    .returning(jobs.c.events)
)
ADVANCE_BY_SUMMARY = ADVANCE.values(
    input_tokens=jobs.c.input_tokens + _size("more_input"),
    output_tokens=jobs.c.output_tokens + _size("more_output"),
    cost=jobs.c.cost + _seconds("more_cost"),
)
ADVANCE_BY_REPLY = ADVANCE_BY_SUMMARY.values(steps=jobs.c.steps + 1)
ADD_EVENT = insert(events)
EVENT = select(events.c.generation, events.c.kind, events.c.at, events.c.body).where(
    events.c.job_id == _text("of_job"), events.c.number == _number("of_number")
)
RENEW = (
    update(jobs)
    .where(_OWNED)
    .values(lease_until=NOW + _seconds("lease_s"))
    .returning(jobs.c.generation)
)
LOSE = (
    update(jobs)
    .where(_HELD, jobs.c.worker == _text("of_worker"))
    .values(lease_until=NOW)
    .returning(jobs.c.id)
)
REPORT = update(attempts).where(_THIS_ATTEMPT)
RELEASE = (
    update(jobs)
    .where(_OWNED)
    .values(
        status=func.coalesce(jobs.c.ended_status, Status.QUEUED.value),
        ended_at=case((jobs.c.ended_status.is_not(None), NOW)),
        updated_at=NOW,
        losses=0,
        lease_until=None,
    )
    .returning(jobs.c.status)
)
END_ATTEMPT = update(attempts).where(_THIS_ATTEMPT).values(ended_at=NOW)
ENDING = select(attempts.c.ending).where(_THIS_ATTEMPT)
DROP_ARTIFACTS = delete(artifacts).where(
    artifacts.c.job_id == _text("of_job"),
    artifacts.c.source.in_(bindparam("gone", type_=AnyText, expanding=True)),
)
KEEP_ARTIFACT = {name: _keep_artifact(name) for name in DIALECTS}

# ---- whoever tends

COUNTS = select(
    func.count().filter(_FREE).label("claimable"),
    func.count().filter(_HELD).label("held"),
    (func.min(jobs.c.lease_until).filter(_HELD) - NOW).label("lapses_in_s"),
).where(_OPEN)
TENANTS = select(jobs.c.id, jobs.c.place).where(
    jobs.c.place.in_(bindparam("places", expanding=True)), jobs.c.ended_at.is_(None)
)
STANDING = select(
    *(jobs.c.id, jobs.c.ended_at, jobs.c.generation, jobs.c.place, jobs.c.engine),
    _HELD.label("is_held"),
).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
SEE = {name: _see(name) for name in DIALECTS}
FORGET = delete(workers).where(workers.c.seen_at < NOW - _seconds("forgotten_s"))
SEEN = select(workers).where(workers.c.seen_at >= NOW - _seconds("within_s"))
TELL = (
    update(jobs)
    .where(
        *(jobs.c.deliver.is_not(None), jobs.c.delivered_at.is_(None)),
        jobs.c.ended_at.is_not(None),
        func.coalesce(jobs.c.told_at, jobs.c.ended_at) <= NOW - _seconds("older_than_s"),
    )
    .values(told_at=NOW)
    .returning(jobs.c.number, jobs.c.id, jobs.c.deliver)
)
DELIVERED = update(jobs).where(THIS_JOB).values(delivered_at=NOW)
