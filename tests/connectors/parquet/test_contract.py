"""The Parquet sink on local disks and on HDFS, held to the contract suite."""

import uuid
from typing import ClassVar

import duckdb
import pytest

from headrace import sinks
from headrace.testing.sinks import IdempotentSinkContract
from support.hdfs import rows_at


class TestParquet(IdempotentSinkContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self._path = tmp_path / "rows"

    def new_sink(self):
        return sinks.Parquet(self._path)

    def stored(self):
        return duckdb.sql(f"SELECT id, text FROM read_parquet('{self._path}/*/*.parquet')").fetchall()


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


class TestParquetPartitioned(ParquetContract):
    options: ClassVar = {"partition_by": "kind"}

    @pytest.fixture(autouse=True)
    def with_a_kind(self, monkeypatch):
        """The suite's rows, with one more column to partition by."""
        write = sinks.Parquet.write

        def wider(sink, batch, rows):
            write(sink, batch, rows.withColumn("kind", rows["id"] % 2))

        monkeypatch.setattr(sinks.Parquet, "write", wider)


class TestParquetOnHdfs(ParquetContract):
    @pytest.fixture(autouse=True)
    def on_hdfs(self, spark, path, hdfs):
        self._path = f"{hdfs.address}/{uuid.uuid4().hex}"

    def stored(self):
        return rows_at(self._path, "id", "text")


class TestParquetPartitionedOnHdfs(TestParquetPartitioned, TestParquetOnHdfs):
    pass
