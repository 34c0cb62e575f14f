"""The in-memory sink and offset store, held to the contract suites."""

import pytest

from headrace import sinks, stores
from headrace.testing.sinks import SinkContract
from headrace.testing.stores import OffsetStoreContract


class TestMemory(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self):
        self._sink = sinks.Memory()

    def new_sink(self):
        return self._sink

    def stored(self):
        return [(row["id"], row["text"]) for row in self._sink.rows]


class TestMemoryStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def shared(self):
        self._shared = {}

    def new_store(self):
        return stores.Memory(self._shared)
