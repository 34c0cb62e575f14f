"""The DuckDB sink and offset store, held to the contract suites."""

import duckdb
import pytest

from headrace import sinks, stores
from headrace.testing.sinks import TransactionalSinkContract
from headrace.testing.stores import OffsetStoreContract


class TestDuckDB(TransactionalSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows.duckdb"

    def new_sink(self):
        return sinks.DuckDB(self._path, table="rows")

    def stored(self):
        with duckdb.connect(str(self._path)) as connection:
            return connection.execute("SELECT id, text FROM rows").fetchall()


class TestDuckDBStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "offsets.duckdb"

    def new_store(self):
        return stores.DuckDB(self._path)
