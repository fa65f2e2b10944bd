"""The tables of a store, for SQLite and PostgreSQL alike.

What changes with every event (`jobs`) is apart from what never changes (`orders`): SQLite writes
a row anew as a whole, and a goal may be long. All times are the database's clock, in seconds
since 1970; only `events.at` is the worker's. A job is open as long as `ended_at` is NULL.

Changing a table here needs a migration in `worker.store.migrations`; a test compares the two.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator

REVISIONS = ("0001", "0002")  # of the migrations, oldest first
HEAD = REVISIONS[-1]
VERSION_TABLE = "caisson_schema"  # not Alembic's usual name: the database may be another's as well

_ESCAPE = "\x1a"
_ESCAPED = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")
_AWKWARD = re.compile("[\x00\x1a\ud800-\udfff]")


def escaped(text: str) -> str:
    """Any text as one that both databases can hold: PostgreSQL no NUL, and neither a surrogate."""
    if "\0" not in text and _ESCAPE not in text and _is_unicode(text):
        return text
    return _AWKWARD.sub(lambda match: f"{_ESCAPE}{ord(match[0]):04x}", text)


def unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


class AnyText(TypeDecorator[str]):
    """Every Python string, as it was."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else escaped(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else unescaped(value)


_NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}
metadata = MetaData(naming_convention=_NAMES)

# Rows of SQLite count in the type INTEGER alone.
_Counter = BigInteger().with_variant(Integer, "sqlite")


def _text(name: str) -> Column[str]:
    return Column(name, AnyText, nullable=False, default="")


def _job_id(*, primary_key: bool = False) -> Column[str]:
    key = ForeignKey("jobs.id", ondelete="CASCADE")
    return Column("job_id", AnyText, key, primary_key=primary_key, nullable=False)


meta = Table("meta", metadata, Column("identity", AnyText, primary_key=True))

jobs = Table(
    "jobs",
    metadata,
    Column("number", _Counter, Identity(), primary_key=True),  # in the order of submission
    Column("id", AnyText, nullable=False, unique=True),
    Column("key", AnyText, unique=True),
    # as it is listed
    Column("status", AnyText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("ended_at", Double),
    # whose it is
    Column("generation", Integer, nullable=False, default=0),
    Column("losses", Integer, nullable=False, default=0),
    Column("lease_until", Double),
    _text("worker"),
    _text("place"),
    _text("engine"),
    Column("is_cancelling", Boolean, nullable=False, default=False),
    # what it needs
    Column("priority", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("cpus", Double, nullable=False),
    _text("waits_for"),
    # what its events come to
    Column("events", Integer, nullable=False, default=0),
    Column("steps", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost", Double),
    Column("ended_status", AnyText),  # becomes its status when it is released
    Column("finish_reason", AnyText),
    Column("answer", AnyText),
    Column("error", AnyText),  # JSON
    # who is to be told
    Column("deliver", AnyText),  # JSON
    Column("told_at", Double),
    Column("delivered_at", Double),
)
_open = jobs.c.ended_at.is_(None)
_undelivered = jobs.c.deliver.is_not(None) & jobs.c.delivered_at.is_(None)


def _partial(name: str, *columns: Any, where: Any) -> Index:  # noqa: ANN401 - what SQLAlchemy takes
    return Index(name, *columns, sqlite_where=where, postgresql_where=where)


# For the claim, for admission, and for the pipelines that wait. Queries must name the same
# conditions without parameters, or the planner cannot see that an index serves.
_partial("ix_jobs_due", jobs.c.priority.desc(), jobs.c.number, where=_open)
_partial("ix_jobs_held", jobs.c.engine, jobs.c.lease_until, where=jobs.c.lease_until.is_not(None))
_partial("ix_jobs_undelivered", jobs.c.ended_at, where=_undelivered)
Index(None, jobs.c.status, jobs.c.number)

orders = Table(
    "orders",
    metadata,
    _job_id(primary_key=True),
    Column("job", AnyText, nullable=False),  # JSON, as it was created
    Column("asked", AnyText, nullable=False),  # JSON of the order
)

events = Table(
    "events",
    metadata,
    _job_id(),
    Column("number", Integer, nullable=False),  # 1 is the first of the job
    Column("kind", AnyText, nullable=False),
    Column("at", Double, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("body", AnyText, nullable=False),  # JSON, without the kind and the time
    PrimaryKeyConstraint("job_id", "number"),
)

attempts = Table(
    "attempts",
    metadata,
    _job_id(),
    Column("generation", Integer, nullable=False),
    _text("worker"),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    _text("ending"),
    Column("figures", AnyText, nullable=False, default="{}"),  # JSON
    PrimaryKeyConstraint("job_id", "generation"),
)

artifacts = Table(
    "artifacts",
    metadata,
    _job_id(),
    Column("name", AnyText, nullable=False),
    Column("position", BigInteger, nullable=False),  # in the order in which they were first made
    _text("source"),
    _text("sha256"),
    Column("size", BigInteger, nullable=False),
    Column("mime", AnyText, nullable=False),
    Column("path", AnyText, nullable=False),
    PrimaryKeyConstraint("job_id", "name"),
)
Index(None, artifacts.c.sha256)

workers = Table(
    "workers",
    metadata,
    Column("name", AnyText, primary_key=True),
    Column("seen_at", Double, nullable=False),
    Column("body", AnyText, nullable=False),  # JSON
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", AnyText, primary_key=True),
    _job_id(),
    Column("call_id", AnyText, nullable=False),
    Column("tool", AnyText, nullable=False),
    Column("arguments_sha256", AnyText, nullable=False),
    Column("state", AnyText, nullable=False),
    Column("asked_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("decided_by", AnyText),
    Column("decided_at", Double),
    _text("reason"),
)
Index(None, approvals.c.job_id)
Index(None, approvals.c.state, approvals.c.expires_at)
