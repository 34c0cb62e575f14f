"""Every store, held to the contract of a store."""

import pytest

from headrace import stores
from headrace.testing.stores import OffsetStoreContract


class TestMemory(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def shared(self):
        self._shared = {}

    def new_store(self):
        return stores.Memory(self._shared)


class TestSQLite(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "deep" / "offsets.db"

    def new_store(self):
        return stores.SQLite(self._path)


class TestDuckDB(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "offsets.duckdb"

    def new_store(self):
        return stores.DuckDB(self._path)
