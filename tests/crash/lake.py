"""Files and Hive tables as the crash suites kill them: how a sink is made, and how every row in it is read."""

import hashlib
import os

import duckdb

from headrace import sinks
from headrace.connectors.hive.sink import Hive
from headrace.connectors.parquet.compaction import compact
from support.hdfs import rows_at


def _partitioned(directory):
    return Partitioned(directory / "rows", partition_by="first")


class Compacting(sinks.Parquet):
    """Compacts at every start: a batch that is repeated was merged a moment before."""

    def open(self, pipeline):
        if any(self.local_path.glob("headrace_batch=*")):
            compact(self.local_path, target=1_000_000, execute=True)
        return super().open(pipeline)


def _compacted(directory):
    return Compacting(directory / "rows")


class Partitioned(sinks.Parquet):
    """With one more column to partition by."""

    def prepare(self, schema):
        """The rows get their column later: the batch will tell."""

    def write(self, batch, rows):
        super().write(batch, rows.selectExpr("*", "left(value, 1) AS first"))


def _listed_rows(make):
    def rows(directory):
        files = make(directory).files()
        if not files:
            return []
        return duckdb.execute("SELECT id, value FROM read_parquet($1, hive_partitioning = false)", [files]).fetchall()

    return rows


def _table(directory):
    """A name of its own for each case: all of them share the metastore of the JVM."""
    return f"crash_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"


def _hive(directory):
    return Hive(_table(directory), location=str(directory / "rows"))


def _hive_rows(directory):
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if not spark.catalog.tableExists(_table(directory)):
        return []
    return [tuple(row) for row in spark.sql(f"SELECT id, value FROM {_table(directory)}").collect()]


def _url(directory):
    return f"{os.environ['HDFS_URL']}/{_table(directory)}"


def on_hdfs(directory):
    return sinks.Parquet(_url(directory))


def rows_on_hdfs(directory):
    return rows_at(_url(directory), "id", "value")


KINDS = {
    "parquet partitioned": (_partitioned, _listed_rows(_partitioned)),
    "parquet, compacted at every start": (_compacted, _listed_rows(_compacted)),
    "hive": (_hive, _hive_rows),
}
"""(sink of a directory, rows in it), by name. Offsets go to a store beside."""
