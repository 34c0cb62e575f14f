"""The Parquet sink, on a local disk or on HDFS."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from headrace.connectors.parquet import directory_layout
from headrace.connectors.parquet.directory_layout import Directories
from headrace.connectors.parquet.hdfs_layout import HdfsDirectories
from headrace.connectors.shared import partition_columns
from headrace.core.sink import IdempotentSink, without_metadata
from headrace.errors import ConfigError, RetriableError
from headrace.spark.origin_columns import stored_schema
from headrace.support.paths import obstacle
from headrace.support.pipeline_folder import resolve_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.types import Batch


class Parquet(IdempotentSink):
    """Writes each batch to a directory `headrace_batch=<ranges>` and publishes it by one rename.

    Readers of the folder (Spark, DuckDB, Arrow) see a batch completely or not at all. The name is derived from the
    ranges, so a repeated batch finds its published directory and does not change it. `path` is local or on HDFS: object
    stores have no atomic rename.
    """

    needs_one_task_per_partition = False

    def __init__(self, path: str | Path, *, partition_by: str | Sequence[str] | None = None) -> None:
        text = str(path).removeprefix("file://")
        if not text:
            raise ConfigError("expected a path, got an empty one", hint='sinks.Parquet("out/clicks")')
        scheme = text.partition("://")[0] if "://" in text else None
        if scheme not in (None, "hdfs"):
            raise ConfigError(
                f"Parquet({text!r}): expected a local path or hdfs://, got {scheme}://: a batch is published by an"
                " atomic rename, which object stores do not have",
                hint="sinks.Delta or sinks.Iceberg publish whole batches in an object store",
            )
        self._local = None if scheme else resolve_path(text).absolute()
        self._path = text.rstrip("/") if scheme else str(self._local)
        self._partition_by = partition_columns.parse_partition_by(partition_by)
        self._pipeline = ""
        self._layout: Directories | HdfsDirectories | None = None

    @property
    def identity(self) -> str:
        by = f", partition_by={list(self._partition_by)!r}" if self._partition_by else ""
        return f"sinks.Parquet({self._path!r}{by})"

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._partition_by

    @property
    def local_path(self) -> Path | None:
        return self._local

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        if self._local is not None:
            self.check_reachable()
            with self._translating_errors():
                self._layout = Directories(self._local, pipeline, self._partition_by)
        return super().open(pipeline)

    def prepare(self, schema: StructType) -> None:
        partition_columns.check(stored_schema(schema), self._partition_by, self._path)

    def check_reachable(self) -> None:
        if self._local is not None:
            with self._translating_errors():
                self._check_directory(self._local)

    def check_target(self, schema: StructType) -> None:
        partition_columns.check(stored_schema(schema), self._partition_by, self._path)
        self.check_reachable()

    def close(self) -> None:
        super().close()
        if self._layout is not None:
            self._layout.close()
        self._layout = None
        self._pipeline = ""

    def write(self, batch: Batch, rows: DataFrame) -> None:
        self.require_open(self._pipeline or None)
        self.ensure_prepared(rows.schema)
        with self._translating_errors():
            if self._layout is None:
                # Not in open(): this needs the credentials of the session, which is known from the rows.
                self._layout = HdfsDirectories(rows.sparkSession, self._path, self._pipeline, self._partition_by)
            self._layout.write(batch, without_metadata(rows))

    def files(self) -> list[str]:
        """All files of the batches, for `spark.read.parquet(*files)` or DuckDB's `read_parquet(files)`.

        The list is consistent also while `headrace compact` runs. On HDFS, which is not compacted, read the folder.
        """
        if self._local is None:
            raise ConfigError(f"{self!r}: files() is for local paths", hint=f"spark.read.parquet({self._path!r})")
        with self._translating_errors():
            return [str(file) for file in directory_layout.files(self._local)]

    def _check_directory(self, root: Path) -> None:
        """ConfigError if this user cannot write to the directory, or if it has files of the former layout."""
        problem = f"{root} is a file" if root.is_file() else obstacle(root)
        if problem is not None:
            raise ConfigError(
                f"{self!r}: expected a directory that this user can write or create, got {problem}",
                hint="choose another path",
            )
        directory_layout.refuse_manifests(root, directory_layout.manifests(root))

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{self._path}: {error.strerror or error}"
            if isinstance(error, FileExistsError | NotADirectoryError):
                raise ConfigError(f"expected a directory: {message}", hint="choose another path") from error
            if isinstance(error, PermissionError) or error.errno == errno.EROFS:
                raise ConfigError(
                    f"{self._path} cannot be written: {error.strerror}", hint="choose another path"
                ) from error
            raise RetriableError(message, hint=f"df -h {self._path}") from error
