"""The JDBC sink, held to the contract suite."""

import pytest

from headrace.connectors.jdbc.connection import Database
from headrace.connectors.jdbc.sink import Jdbc
from headrace.testing.sinks import IdempotentSinkContract


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
