"""The HBase sink and offset store, held to the contract suites."""

import uuid

import pytest

from headrace import sinks, stores
from headrace.testing.sinks import KeyedSinkContract
from headrace.testing.stores import OffsetStoreContract


class TestHBaseStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, request):
        pytest.importorskip("happybase")
        self._thrift = request.getfixturevalue("hbase").thrift

    def new_store(self):
        return stores.HBase(self._thrift)


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
