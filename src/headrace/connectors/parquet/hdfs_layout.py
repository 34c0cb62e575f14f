"""A directory per batch on HDFS, published by a single rename, which the NameNode does atomically."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from headrace.connectors.parquet.directory_layout import refuse_manifests
from headrace.connectors.shared.dataset_locks import INTERNAL_DIRECTORY
from headrace.connectors.shared.file_store import Hadoop, translating_errors
from headrace.connectors.shared.parquet_writer import write_files
from headrace.connectors.shared.partition_columns import BATCH
from headrace.errors import RetriableError
from headrace.support.crashpoints import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace.types import Batch


class HdfsDirectories:
    """The layout of `Directories` without its locks, because datasets on HDFS are not compacted."""

    def __init__(self, spark: SparkSession, root: str, pipeline: str, partition_by: Sequence[str]) -> None:
        self._files = _Hdfs(spark, root)
        self._pipeline = pipeline
        self._partition_by = partition_by
        manifests = self._files.list_files(f"{INTERNAL_DIRECTORY}/manifests")
        remains = [name for name in manifests if name.endswith(".json")]
        refuse_manifests(root, remains + [name for name in self._files.list_files("data") if f"/{BATCH}=" in name])

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. write the files to this attempt's staging directory; 2. publish them by renaming it; 3. clean up."""
        name = f"{self._pipeline}-{batch.fingerprint}"
        published, attempts = f"{BATCH}={name}", f"{INTERNAL_DIRECTORY}/{self._pipeline}/{name}"
        if not self._files.exists(published):
            attempt = f"{attempts}/{uuid.uuid4().hex}"
            write_files(rows, self._files.uri(attempt), self._partition_by)
            reach("parquet: files staged")
            self._files.rename(attempt, published)
            reach("parquet: renamed")
        # Other attempts at this batch can no longer be published, because the name exists.
        self._files.remove_directory(attempts)

    def close(self) -> None:
        """Keeps attempts of dead runs until their batch is repeated: they look like those of a live run."""


class _Hdfs(Hadoop):
    def __init__(self, spark: SparkSession, root: str) -> None:
        super().__init__(spark, root)
        java: Any = spark.sparkContext._gateway
        hadoop = java.jvm.org.apache.hadoop.fs
        self._no_options = java.new_array(getattr(hadoop, "Options$Rename"), 0)
        with translating_errors(root):
            self._context = hadoop.FileContext.getFileContext(self._system.getUri(), self._system.getConf())

    def rename(self, directory: str, to: str) -> None:
        """Rename a directory, unless the name exists: then another attempt has published the rows of this batch.

        Not with FileSystem.rename, which moves a directory into an existing one.
        """
        try:
            with translating_errors(self.uri(to)):
                self._context.rename(self._path(self.uri(directory)), self._path(self.uri(to)), self._no_options)
        except (FileExistsError, FileNotFoundError) as error:
            if not self.exists(to):
                raise RetriableError(f"{self.uri(directory)} was removed before it was published") from error

    def remove_directory(self, name: str) -> None:
        with translating_errors(self.uri(name)):
            self._system.delete(self._path(self.uri(name)), True)
