"""Empty stores of each kind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from tests.services import PostgresServer
from worker.store.base import Store
from worker.store.connections import Database
from worker.store.database import open_store
from worker.store.memory import MemoryStore


@contextmanager
def opened(kind: str) -> Iterator[tuple[Store, Database | None]]:
    """An empty store of that kind."""
    if kind == "memory":
        yield MemoryStore(), None
        return
    with ExitStack() as stack:
        if kind == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="caisson-bench-"))
            url = f"sqlite:///{folder}/caisson.db"
        else:
            url = stack.enter_context(PostgresServer()).database()
        store = stack.enter_context(closing(open_store(url)))
        yield store, stack.enter_context(closing(Database(url)))
