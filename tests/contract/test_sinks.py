"""Every sink, held to the contract of its type."""

import duckdb
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


class TestParquet(IdempotentSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows"

    def new_sink(self):
        return sinks.Parquet(self._path)

    def stored(self):
        return duckdb.sql(f"SELECT id, text FROM read_parquet('{self._path}/*/*.parquet')").fetchall()
