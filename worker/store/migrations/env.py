"""Runs migrations over the connection that `worker.store.database` hands in, in its transaction."""

from __future__ import annotations

from alembic import context

from worker.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
