"""The Delta sink, held to the contract suite."""

import pytest
from deltalake import DeltaTable

from headrace.connectors.delta.sink import Delta
from headrace.testing.sinks import IdempotentSinkContract


class TestDelta(IdempotentSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows"

    def new_sink(self):
        return Delta(self._path)

    def stored(self):
        return [(row["id"], row["text"]) for row in DeltaTable(self._path).to_pyarrow_table().to_pylist()]
