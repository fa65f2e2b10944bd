"""The store in a database: the contract over SQLite and PostgreSQL, both for real."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.worker.store_contract import StoreContract
from worker.store.database import open_store


@pytest.fixture(scope="module")
def kept_url(postgres_server):
    postgres_server.start()
    return postgres_server.database()


class TestSqlite(StoreContract):
    @pytest.fixture
    def opened(self, tmp_path):
        stores = []

        def make(**options):
            stores.append(open_store(f"sqlite:///{tmp_path}/caisson.db", **options))
            return stores[-1]

        yield make
        for store in stores:
            store.close()


class TestPostgres(StoreContract):
    """One database for all tests, emptied for each: to make one takes longer than a test."""

    @pytest.fixture
    def opened(self, kept_url):
        stores = []

        def make(**options):
            stores.append(store := open_store(kept_url, **options))
            store._database.write(lambda c: c.execute(text("TRUNCATE jobs, workers CASCADE")))
            return store

        yield make
        for store in stores:
            store.close()
