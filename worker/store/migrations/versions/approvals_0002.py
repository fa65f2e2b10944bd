"""Calls that a person must allow first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_REQUIRED = ("id", "job_id", "call_id", "tool", "arguments_sha256", "state", "reason")


def upgrade() -> None:
    op.create_table(
        "approvals",
        *(sa.Column(name, sa.Text, nullable=False) for name in _REQUIRED),
        sa.Column("asked_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("decided_by", sa.Text),
        sa.Column("decided_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_approvals_job_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_approvals_job_id", "approvals", ["job_id"])
    op.create_index("ix_approvals_state_expires_at", "approvals", ["state", "expires_at"])
