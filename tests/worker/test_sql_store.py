"""The store in a database: the contract over SQLite and PostgreSQL, both for real."""

from __future__ import annotations

import contextlib

import pytest
from sqlalchemy import delete

from tests.worker.store_contract import StoreContract
from worker.store.database import open_store
from worker.store.tables import jobs, workers


@contextlib.contextmanager
def emptied(url):
    """Give the store at an address, without jobs; it is kept, because to make one takes long."""
    with contextlib.ExitStack() as stack:
        stores = {}

        def make(**options):
            key = tuple(options.items())
            if key not in stores:
                closing = contextlib.closing(open_store(url, **options))
                stores[key] = stack.enter_context(closing)
            for table in (jobs, workers):
                stores[key]._database.write(lambda c, table=table: c.execute(delete(table)))
            return stores[key]

        yield make


@pytest.fixture(scope="module")
def in_sqlite(tmp_path_factory):
    with emptied(f"sqlite:///{tmp_path_factory.mktemp('store')}/caisson.db") as make:
        yield make


@pytest.fixture(scope="module")
def in_postgres(postgres_server):
    postgres_server.start()
    with emptied(postgres_server.database()) as make:
        yield make


class TestSqlite(StoreContract):
    @pytest.fixture
    def opened(self, in_sqlite):
        return in_sqlite


class TestPostgres(StoreContract):
    @pytest.fixture
    def opened(self, in_postgres):
        return in_postgres
