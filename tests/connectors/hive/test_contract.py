"""The Hive sink on local disks and on HDFS, held to the contract suite."""

import uuid
from typing import ClassVar

import pytest

from headrace.connectors.hive.sink import Hive
from headrace.testing.sinks import IdempotentSinkContract


class TestHive(IdempotentSinkContract):
    options: ClassVar = {}

    @pytest.fixture(autouse=True)
    def place(self, spark, tmp_path):
        self._spark, self._table, self._location = spark, f"t{uuid.uuid4().hex[:12]}", tmp_path / "table"
        yield
        spark.sql(f"DROP TABLE IF EXISTS {self._table}")

    def new_sink(self):
        return Hive(self._table, location=str(self._location), **self.options)

    def stored(self):
        if not self._spark.catalog.tableExists(self._table):
            return []
        return [tuple(row) for row in self._spark.sql(f"SELECT id, text FROM {self._table}").collect()]


class TestHiveOnHdfs(TestHive):
    """Through Hadoop's own interface, as in an object store."""

    @pytest.fixture(autouse=True)
    def on_hdfs(self, place, hdfs):
        self._location = f"{hdfs.address}/{self._table}"


class TestHivePartitioned(TestHive):
    options: ClassVar = {"partition_by": "kind"}

    @pytest.fixture(autouse=True)
    def with_a_kind(self, monkeypatch):
        """The suite's rows, with one more column to partition by."""
        write = Hive.write

        def wider(sink, batch, rows):
            write(sink, batch, rows.withColumn("kind", rows["id"] % 2))

        monkeypatch.setattr(Hive, "write", wider)
