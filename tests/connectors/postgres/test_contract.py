"""The PostgreSQL sink and offset store, held to the contract suites."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from headrace import sinks, stores
from headrace.testing.sinks import TransactionalSinkContract
from headrace.testing.stores import OffsetStoreContract


class TestPostgres(TransactionalSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, postgres):
        self._dsn, self._table = postgres.address, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.Postgres(self._dsn, self._table, create=True)

    def stored(self):
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(f"SELECT id, text FROM {self._table}").fetchall()


class TestPostgresByBatch(TestPostgres):
    def new_sink(self):
        return sinks.Postgres(self._dsn, self._table, create=True, visible="batch")


class TestPostgresStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, postgres):
        self._dsn = postgres.dsn

    def new_store(self):
        return stores.Postgres(self._dsn)

    def test_many_runs_that_create_the_tables_at_once_all_succeed(self, pipeline):
        import psycopg

        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{pipeline}"')
        fresh = self._dsn.rpartition("/")[0] + f"/{pipeline}"
        with ThreadPoolExecutor(8) as pool:
            for store in pool.map(lambda _: stores.Postgres(fresh).open(pipeline), range(8)):
                store.close()
