"""Files and Hive tables as the crash suites kill them: how a sink is made, and how every row in it is read."""

import hashlib

import duckdb

from headrace import sinks
from headrace.lake.compaction import compact
from headrace.lake.place import Place
from headrace.sinks.hive import Hive


def _by_manifest(directory):
    return sinks.Parquet(directory / "rows", visible="manifest")


def _partitioned(directory):
    return Partitioned(directory / "rows", partition_by="first")


class Compacting(sinks.Parquet):
    """Compacts at every start, without grace: a batch that is repeated was merged a moment before."""

    def __init__(self, path, **options):
        super().__init__(path, **options)
        self._where = path

    def open(self, pipeline):
        place = Place(self._where)
        if place.layout() is not None:
            compact(place, target=1_000_000, older_than=-60, execute=True)
        return super().open(pipeline)


def _compacted(directory):
    return Compacting(directory / "rows")


def _compacted_by_manifest(directory):
    return Compacting(directory / "rows", visible="manifest")


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


KINDS = {
    "parquet by manifest": (_by_manifest, _listed_rows(_by_manifest)),
    "parquet partitioned": (_partitioned, _listed_rows(_partitioned)),
    "parquet, compacted at every start": (_compacted, _listed_rows(_compacted)),
    "parquet by manifest, compacted at every start": (_compacted_by_manifest, _listed_rows(_compacted_by_manifest)),
    "hive": (_hive, _hive_rows),
}
"""(sink of a directory, rows in it), by name. Offsets go to a store beside."""
