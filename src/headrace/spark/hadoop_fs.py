"""Folders that executors write to, as the driver sees them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.support.durable import sync, sync_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ABOVE = 4
"""Folders above one of a batch that a first batch may have made."""


class Folder:
    """A folder that Spark writes to, seen through the Hadoop file systems that it writes with."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        jvm: Any = spark._jvm
        self._uri = uri
        self._path = jvm.org.apache.hadoop.fs.Path(uri)
        self._child = jvm.org.apache.hadoop.fs.Path
        self._files = self._path.getFileSystem(cast("Any", spark)._jsc.hadoopConfiguration())

    def __str__(self) -> str:
        return self._uri

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
            sync_with_parents(Path(self._path.toUri().getPath()))


def sync_with_parents(folder: Path) -> None:
    """Make a local folder durable, and its name in those above."""
    sync_tree(folder)
    for parent in list(folder.parents)[:_ABOVE]:
        sync(parent)
