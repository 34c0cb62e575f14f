"""Parquet in its layouts and Hive tables, held to the contract of its type."""

import uuid
from typing import ClassVar

import duckdb
import pytest

from headrace import sinks
from headrace.sinks.hive import Hive
from headrace.testing.sinks import IdempotentSinkContract


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


class TestByManifest(ParquetContract):
    options: ClassVar = {"visible": "manifest"}


class TestPartitionedByManifest(TestPartitioned):
    options: ClassVar = {"partition_by": ["kind"], "visible": "manifest"}


class TestOnAnotherFileSystem(ParquetContract):
    """Through Hadoop's own interface, as in an object store: viewfs is one that comes with Spark."""

    @pytest.fixture(autouse=True)
    def mounted(self, spark, path, tmp_path):
        self._spark, name = spark, f"lake{uuid.uuid4().hex[:8]}"
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        conf.set(f"fs.viewfs.mounttable.{name}.link./lake", tmp_path.as_uri())
        self._here, self._path = tmp_path, f"viewfs://{name}/lake/rows"

    def stored(self):
        files = self.new_sink().files()
        assert all(file.startswith("viewfs://") for file in files)
        rows = self._spark.read.parquet(*files).collect() if files else []
        return [(row["id"], row["text"]) for row in rows]


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


class TestHivePartitioned(TestHive):
    options: ClassVar = {"partition_by": "kind"}

    @pytest.fixture(autouse=True)
    def with_a_kind(self, monkeypatch):
        """The suite's rows, with one more column to partition by."""
        write = Hive.write

        def wider(sink, batch, rows):
            write(sink, batch, rows.withColumn("kind", rows["id"] % 2))

        monkeypatch.setattr(Hive, "write", wider)
