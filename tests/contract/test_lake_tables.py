"""The sinks that write tables over files and through JDBC, held to the contract of their type."""

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headrace.connectors.delta.sink import Delta
from headrace.connectors.iceberg.sink import Iceberg
from headrace.connectors.jdbc.connection import Database
from headrace.connectors.jdbc.sink import Jdbc
from headrace.testing.sinks import IdempotentSinkContract


class TestDelta(IdempotentSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows"

    def new_sink(self):
        return Delta(self._path)

    def stored(self):
        return [(row["id"], row["text"]) for row in DeltaTable(self._path).to_pyarrow_table().to_pylist()]


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


class TestJdbc(IdempotentSinkContract):
    """On Derby, which ships with Spark; tests/connectors/jdbc/test_sink.py is on PostgreSQL, too."""

    @pytest.fixture(autouse=True)
    def database(self, tmp_path, spark):
        self._url = f"jdbc:derby:{tmp_path / 'derby'};create=true"

    def new_sink(self):
        return Jdbc(self._url, table="rows", create=True)

    def stored(self):
        with Database(self._url).connected() as connection:
            return connection.query('SELECT "id", CAST("text" AS VARCHAR(200)) FROM "rows"')
