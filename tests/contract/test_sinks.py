"""Every sink, held to the contract of its type."""

import sqlite3
import uuid
from contextlib import closing

import duckdb
import psycopg
import pytest

from headrace import sinks
from headrace.testing.sinks import IdempotentSinkContract, SinkContract, TransactionalSinkContract


class TestMemory(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self):
        self._sink = sinks.Memory()

    def new_sink(self):
        return self._sink

    def stored(self):
        return [(row["id"], row["text"]) for row in self._sink.rows]


class TestDuckDB(TransactionalSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows.duckdb"

    def new_sink(self):
        return sinks.DuckDB(self._path, table="rows")

    def stored(self):
        with duckdb.connect(str(self._path)) as connection:
            return connection.execute("SELECT id, text FROM rows").fetchall()


class TestSQLite(TransactionalSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows.db"

    def new_sink(self):
        return sinks.SQLite(self._path, table="rows")

    def stored(self):
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute("SELECT id, text FROM rows").fetchall()


class TestParquet(IdempotentSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows"

    def new_sink(self):
        return sinks.Parquet(self._path)

    def stored(self):
        return duckdb.sql(f"SELECT id, text FROM read_parquet('{self._path}/*/*.parquet')").fetchall()


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


class TestFanout(IdempotentSinkContract):
    """Of one sink that is transactional and one that is idempotent: both have every row once."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path, postgres):
        self._path, self._dsn, self._table = tmp_path / "rows", postgres.address, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.Fanout([sinks.Postgres(self._dsn, self._table, create=True), sinks.Parquet(self._path)])

    def stored(self):
        files = duckdb.sql(f"SELECT id, text FROM read_parquet('{self._path}/*/*.parquet')").fetchall()
        with psycopg.connect(self._dsn) as connection:
            table = connection.execute(f"SELECT id, text FROM {self._table}").fetchall()
        assert sorted(files, key=str) == sorted(table, key=str)
        return table
