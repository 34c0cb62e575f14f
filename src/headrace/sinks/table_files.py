"""Parquet files for tables that others read, written by the executors."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

# How a reader that is not Spark expects Parquet: no INT96, and the calendar that everybody else uses.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
}
# Long texts are bounded by their beginnings, the upper one rounded up. Otherwise Parquet leaves the statistics of the
# longest out, and deltalake's Arrow dataset takes bounds that only some files have for ones that exclude the others.
_BOUNDED = ("parquet.statistics.truncate.length", "64")
_ABOVE = 4
"""Folders above one of a batch that a first batch may have made."""


def write_parquet(rows: DataFrame, uri: str, partition_by: Sequence[str] = ()) -> int:
    """Let the executors write the rows into a new folder; how many they were."""
    from pyspark.sql import Observation, functions

    counted = Observation()
    observed = rows.observe(counted, functions.count(functions.lit(1)).alias("rows"))
    with _set(rows.sparkSession):
        observed.write.option(*_BOUNDED).partitionBy(*partition_by).parquet(uri)
    return int(counted.get["rows"])


@contextmanager
def _set(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    try:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


class Folder:
    """A folder that Spark writes to, seen through the Hadoop file systems that it writes with."""

    def __init__(self, uri: str) -> None:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        jvm: Any = spark._jvm
        self._uri = uri
        self._path = jvm.org.apache.hadoop.fs.Path(uri)
        self._child = jvm.org.apache.hadoop.fs.Path
        self._files = self._path.getFileSystem(cast("Any", spark)._jsc.hadoopConfiguration())

    def names(self) -> list[str]:
        found = self._files.listStatus(self._path) if self._files.exists(self._path) else []
        return sorted(str(status.getPath().getName()) for status in found)

    def parquet(self) -> list[str]:
        return [f"{self._uri}/{name}" for name in self.names() if name.endswith(".parquet")]

    def remove(self, name: str) -> None:
        self._files.delete(self._child(self._path, name), True)

    def sync(self) -> None:
        """On a local disk, make what is in it durable. An object store has done so."""
        if self._path.toUri().getScheme() in (None, "file"):
            sync_tree(Path(self._path.toUri().getPath()))


def sync_tree(root: Path, newest: str = "") -> None:
    """Make a local folder durable, and its name in those above; with `newest`, only the last of the files so ending."""
    paths = [root, *list(root.parents)[:_ABOVE]]
    for directory, _, names in os.walk(root):
        entries = sorted(name for name in names if newest and name[:20].isdigit() and name.endswith(newest))
        paths += [Path(directory, name) for name in (entries[-1:] if newest else names)] + [Path(directory)]
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
