"""The SQLite sink and offset store, held to the contract suites."""

import sqlite3
from contextlib import closing

import pytest

from headrace import sinks, stores
from headrace.testing.sinks import TransactionalSinkContract
from headrace.testing.stores import OffsetStoreContract


class TestSQLite(TransactionalSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows.db"

    def new_sink(self):
        return sinks.SQLite(self._path, table="rows")

    def stored(self):
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute("SELECT id, text FROM rows").fetchall()


class TestSQLiteStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "deep" / "offsets.db"

    def new_store(self):
        return stores.SQLite(self._path)
