"""The Iceberg sink, held to the contract suite."""

import pytest
from pyiceberg.catalog import load_catalog

from headrace.connectors.iceberg.sink import Iceberg
from headrace.testing.sinks import IdempotentSinkContract


class TestIceberg(IdempotentSinkContract):
    @pytest.fixture(autouse=True)
    def catalog(self, tmp_path):
        self._properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
            "warehouse": (tmp_path / "warehouse").as_uri(),
        }

    def new_sink(self):
        return Iceberg("contract.rows", properties=self._properties)

    def stored(self):
        table = load_catalog("default", **self._properties).load_table("contract.rows")
        return [(row["id"], row["text"]) for row in table.scan().to_arrow().to_pylist()]
