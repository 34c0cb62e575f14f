"""Files and Hive tables of the crash suites: creates the sinks and reads all rows in them."""

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
    """Compacts at each start, so that a repeated batch has just been merged."""

    def open(self, pipeline):
        if any(self.local_path.glob("headrace_batch=*")):
            compact(self.local_path, target=1_000_000, execute=True)
        return super().open(pipeline)


def _compacted(directory):
    return Compacting(directory / "rows")


class Partitioned(sinks.Parquet):
    """Adds a column to partition by."""

    def prepare(self, schema):
        """Do nothing: the rows get the column in `write`."""

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
    """A separate table name for each case, because all cases share the metastore of the JVM."""
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
"""(sink of a directory, rows in it), by name. The offsets are in a separate store."""
