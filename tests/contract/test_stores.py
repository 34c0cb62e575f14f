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


class TestPostgres(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, postgres):
        self._dsn = postgres.dsn

    def new_store(self):
        return stores.Postgres(self._dsn)


class TestRedis(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, redis):
        self._url = redis.url

    def new_store(self):
        return stores.Redis(self._url)


class TestCassandra(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, cassandra):
        self._hosts = cassandra.hosts

    def new_store(self):
        return stores.Cassandra(self._hosts, keyspace="contract", create=True)
