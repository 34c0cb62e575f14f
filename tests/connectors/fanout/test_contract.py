"""The fan-out sink, held to the contract suite."""

import uuid

import duckdb
import psycopg
import pytest

from headrace import sinks
from headrace.testing.sinks import IdempotentSinkContract


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
