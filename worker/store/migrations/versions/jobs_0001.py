"""Jobs, their events, attempts and artefacts, and the workers that were seen."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_COUNTER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _create_meta()
    _create_jobs()
    _index_jobs()
    _create_orders()
    _create_events()
    _create_attempts()
    _create_artifacts()
    _create_workers()


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)


def _size(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _time(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=False)


def _of_job(table: str) -> tuple[Any, ...]:
    key = sa.ForeignKeyConstraint(
        ["job_id"], ["jobs.id"], name=f"fk_{table}_job_id", ondelete="CASCADE"
    )
    return (_text("job_id"), key)


def _create_meta() -> None:
    meta = op.create_table(
        "meta", _text("identity"), sa.PrimaryKeyConstraint("identity", name="pk_meta")
    )
    op.bulk_insert(meta, [{"identity": str(uuid.uuid4())}])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", _COUNTER, sa.Identity(), nullable=False),
        _text("id"),
        sa.Column("key", sa.Text),
        _text("status"),
        _time("created_at"),
        _time("updated_at"),
        sa.Column("ended_at", sa.Double),
        _number("generation"),
        _number("losses"),
        sa.Column("lease_until", sa.Double),
        *(_text("worker"), _text("place"), _text("engine")),
        sa.Column("is_cancelling", sa.Boolean, nullable=False),
        _number("priority"),
        _size("memory_bytes"),
        sa.Column("cpus", sa.Double, nullable=False),
        _text("waits_for"),
        *(_number("events"), _number("steps")),
        *(_size("input_tokens"), _size("output_tokens")),
        sa.Column("cost", sa.Double),
        sa.Column("ended_status", sa.Text),
        sa.Column("finish_reason", sa.Text),
        sa.Column("answer", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("deliver", sa.Text),
        sa.Column("told_at", sa.Double),
        sa.Column("delivered_at", sa.Double),
        sa.PrimaryKeyConstraint("number", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("key", name="uq_jobs_key"),
    )


def _index_jobs() -> None:
    op.create_index("ix_jobs_status_number", "jobs", ["status", "number"])
    partial: dict[str, tuple[list[Any], str]] = {
        "ix_jobs_due": ([sa.text("priority DESC"), "number"], "ended_at IS NULL"),
        "ix_jobs_held": (["engine", "lease_until"], "lease_until IS NOT NULL"),
        "ix_jobs_undelivered": (
            ["ended_at"],
            "deliver IS NOT NULL AND delivered_at IS NULL",
        ),
    }
    for name, (columns, condition) in partial.items():
        where = sa.text(condition)
        op.create_index(name, "jobs", columns, sqlite_where=where, postgresql_where=where)


def _create_orders() -> None:
    primary = sa.PrimaryKeyConstraint("job_id", name="pk_orders")
    op.create_table("orders", *_of_job("orders"), _text("job"), _text("asked"), primary)


def _create_events() -> None:
    op.create_table(
        "events",
        *_of_job("events"),
        *(_number("number"), _text("kind"), _time("at"), _number("generation"), _text("body")),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_events"),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        *_of_job("attempts"),
        *(_number("generation"), _text("worker"), _time("started_at")),
        sa.Column("ended_at", sa.Double),
        *(_text("ending"), _text("figures")),
        sa.PrimaryKeyConstraint("job_id", "generation", name="pk_attempts"),
    )


def _create_artifacts() -> None:
    op.create_table(
        "artifacts",
        *_of_job("artifacts"),
        *(_text("name"), _size("position"), _text("source"), _text("sha256"), _size("size")),
        *(_text("mime"), _text("path")),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_artifacts"),
    )
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"])


def _create_workers() -> None:
    primary = sa.PrimaryKeyConstraint("name", name="pk_workers")
    op.create_table("workers", _text("name"), _time("seen_at"), _text("body"), primary)
