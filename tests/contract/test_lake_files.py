"""Parquet, on local disks and on HDFS, and Hive tables, held to the contract of their type."""

import uuid
from typing import ClassVar

import duckdb
import pytest

from headrace import sinks
from headrace.connectors.hive.sink import Hive
from headrace.testing.sinks import IdempotentSinkContract
from support.hdfs import rows_at


class ParquetContract(IdempotentSinkContract):
    """What is stored is what the files that count hold."""

    options: ClassVar = {}

    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows"

    def new_sink(self):
        return sinks.Parquet(self._path, **self.options)

    def stored(self):
        files = self.new_sink().files()
        found = duckdb.sql(f"SELECT id, text FROM read_parquet({files}, hive_partitioning=false)") if files else None
        return found.fetchall() if found else []


class TestPartitioned(ParquetContract):
    options: ClassVar = {"partition_by": "kind"}

    @pytest.fixture(autouse=True)
    def with_a_kind(self, monkeypatch):
        """The suite's rows, with one more column to partition by."""
        write = sinks.Parquet.write

        def wider(sink, batch, rows):
            write(sink, batch, rows.withColumn("kind", rows["id"] % 2))

        monkeypatch.setattr(sinks.Parquet, "write", wider)


class TestOnHdfs(ParquetContract):
    @pytest.fixture(autouse=True)
    def on_hdfs(self, spark, path, hdfs):
        self._path = f"{hdfs.address}/{uuid.uuid4().hex}"

    def stored(self):
        return rows_at(self._path, "id", "text")


class TestPartitionedOnHdfs(TestPartitioned, TestOnHdfs):
    pass


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
