"""The sinks in Cassandra and HBase, held to the contract of sinks with one value per key."""

import uuid

import pytest

from headrace import sinks, stores
from headrace.testing.sinks import KeyedSinkContract


@pytest.fixture(scope="module")
def cql(cassandra):
    """A session, and a keyspace."""
    from cassandra.cluster import Cluster

    stores.Cassandra(cassandra.hosts, keyspace="contract", create=True).open("keyspace").close()
    host, port = cassandra.hosts.split(":")
    with Cluster([host], port=int(port), protocol_version=4) as cluster:
        yield cluster.connect("contract")


class TestCassandra(KeyedSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, cassandra, cql):
        self._hosts, self._cql, self._table = cassandra.hosts, cql, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.Cassandra(self._hosts, f"contract.{self._table}", create=True)

    def new_upserting_sink(self):
        return sinks.Cassandra(self._hosts, f"contract.{self._table}_up", key="id", create=True)

    def stored(self):
        return [tuple(row) for row in self._cql.execute(f"SELECT id, text FROM {self._table}")]

    def upserted(self):
        return [tuple(row) for row in self._cql.execute(f"SELECT id, text FROM {self._table}_up")]


class TestHBase(KeyedSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, hbase):
        self._thrift, self._table = hbase.thrift, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.HBase(self._thrift, self._table, create=True)

    def new_upserting_sink(self):
        return sinks.HBase(self._thrift, f"{self._table}_up", key="id", create=True)

    def stored(self):
        return self._rows(self._table)

    def upserted(self):
        return self._rows(f"{self._table}_up")

    def _rows(self, table):
        import happybase

        host, port = self._thrift.split(":")
        connection = happybase.Connection(host, int(port))
        try:
            cells = [cells for _, cells in connection.table(table).scan()]
        finally:
            connection.close()
        texts = [(int(found[b"d:id"]), found.get(b"d:text")) for found in cells]
        return [(number, text if text is None else text.decode()) for number, text in texts]
