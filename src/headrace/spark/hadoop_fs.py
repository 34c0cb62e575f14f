"""Lists and syncs, on the driver, the folders that executors write to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.support.durable import sync, sync_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARENTS = 4
"""Parents of a batch's folder that the first batch may have created."""


class Folder:
    """A folder that Spark writes to, accessed through the same Hadoop file system."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        jvm: Any = spark._jvm
        self._uri = uri
        self._path = jvm.org.apache.hadoop.fs.Path(uri)
        self._new_path = jvm.org.apache.hadoop.fs.Path
        self._fs = self._path.getFileSystem(cast("Any", spark)._jsc.hadoopConfiguration())

    def __str__(self) -> str:
        return self._uri

    def names(self) -> list[str]:
        entries = self._fs.listStatus(self._path) if self._fs.exists(self._path) else []
        return sorted(str(status.getPath().getName()) for status in entries)

    def parquet_files(self) -> list[str]:
        return [f"{self._uri}/{name}" for name in self.names() if name.endswith(".parquet")]

    def remove(self, name: str) -> None:
        self._fs.delete(self._new_path(self._path, name), True)

    def sync(self) -> None:
        """Fsync its content on a local disk. An object store needs no sync."""
        if self._path.toUri().getScheme() in (None, "file"):
            sync_with_parents(Path(self._path.toUri().getPath()))


def sync_with_parents(folder: Path) -> None:
    """Fsync a local folder with its content, and its parents, which hold its name."""
    sync_tree(folder)
    for parent in list(folder.parents)[:_PARENTS]:
        sync(parent)
