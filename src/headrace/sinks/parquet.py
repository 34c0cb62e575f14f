"""Parquet files, on a local disk or in an object store."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from headrace.durable import make_directory
from headrace.errors import ConfigError, RetriableError
from headrace.lake import columns, directories, manifests
from headrace.lake.directories import Directories
from headrace.lake.manifests import Manifests
from headrace.lake.place import Place
from headrace.paths import obstacle
from headrace.sinks.base import IdempotentSink, stored_schema, without_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.types import Batch


class Parquet(IdempotentSink):
    """Each batch is a set of files that appear together.

    On a local path a batch is a directory `headrace_batch=<ranges>`, published by one rename: whoever reads the folder
    (Spark, DuckDB, Arrow) sees it whole or not at all. Elsewhere, and with `visible="manifest"`, a batch counts once
    its manifest is written, and `files()` lists what counts. Either name is derived from the ranges, so a repeated
    batch meets what it published before and leaves it.
    """

    whole_ranges = False

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: str | Sequence[str] | None = None,
        visible: str | None = None,
    ) -> None:
        self._place = Place(path)
        self._partition_by = columns.listed(partition_by)
        if visible not in (None, "rename", "manifest"):
            raise ConfigError(f"visible={visible!r} is unknown", hint='visible="rename" or visible="manifest"')
        if visible == "rename" and self._place.local is None:
            raise ConfigError(
                f"Parquet({self._place}): an atomic rename is meant, and only a local path is known to have one",
                hint='visible="manifest"',
            )
        self._by_manifest = visible == "manifest" or self._place.local is None
        self._asked = visible is not None
        self._pipeline = ""
        self._layout: Directories | Manifests | None = None
        self._checked = False

    @property
    def identity(self) -> str:
        given = [repr(str(self._place))]
        if self._partition_by:
            given.append(f"partition_by={list(self._partition_by)!r}")
        if self._asked:
            given.append(f"visible={'manifest' if self._by_manifest else 'rename'!r}")
        return f"sinks.Parquet({', '.join(given)})"

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._partition_by

    @property
    def local_path(self) -> Path | None:
        return self._place.local

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        self._checked = False
        if self._place.local is not None:
            with self._translated():
                self._refuse_place(self._place.local)
                if not self._by_manifest:
                    self._layout = Directories(self._place.local, pipeline, self._partition_by)
                else:
                    make_directory(self._place.local / manifests.PLACE)
        return self

    def prepare(self, schema: StructType) -> None:
        columns.check(stored_schema(schema), self._partition_by, str(self._place))
        self._checked = True

    def check_reachable(self) -> None:
        if self._place.local is not None:
            with self._translated():
                self._refuse_place(self._place.local)

    def check_target(self, schema: StructType) -> None:
        columns.check(stored_schema(schema), self._partition_by, str(self._place))
        self.check_reachable()

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str:
        return f"each batch is published by one {'manifest' if self._by_manifest else 'rename'}"

    def close(self) -> None:
        if self._layout is not None:
            self._layout.close()
        self._layout = None
        self._pipeline = ""

    def write(self, batch: Batch, rows: DataFrame) -> None:
        if not self._pipeline:
            raise ConfigError(f"{self!r} is used before open()")
        if not self._checked:
            self.prepare(rows.schema)
        with self._translated():
            if self._layout is None:
                # Not in open(): it takes the session's own credentials, and the rows bring the session.
                objects = self._place.objects(rows.sparkSession)
                self._layout = Manifests(objects, self._pipeline, self._partition_by)
            self._layout.write(batch, without_metadata(rows))

    def files(self, spark: SparkSession | None = None) -> list[str]:
        """Every file that counts, for `spark.read.parquet(*files)` or DuckDB's `read_parquet(files)`.

        A path that is not local is asked through `spark`, by default the active session.
        """
        with self._translated():
            if self._place.layout(spark) == "manifest":
                return manifests.files(self._place.objects(spark))
            return [str(file) for file in directories.files(self._place.here)]

    def _refuse_place(self, root: Path) -> None:
        """ConfigError if no batches can be put there: by this user, or beside those of the other layout."""
        wrong = f"{root} is a file" if root.is_file() else obstacle(root)
        if wrong is not None:
            raise ConfigError(
                f"{self!r}: expected a directory that this user can write or create, got {wrong}",
                hint="choose another path",
            )
        there = self._place.layout() if root.is_dir() else None
        wanted = "manifest" if self._by_manifest else "rename"
        if there not in (None, wanted):
            raise ConfigError(
                f'{root} holds batches made visible by {there}, and visible="{wanted}" is meant',
                hint=f'visible="{there}", or another path',
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{self._place}: {error.strerror or error}"
            if isinstance(error, FileExistsError | NotADirectoryError):
                raise ConfigError(f"{message}: a directory is meant", hint="choose another path") from error
            if isinstance(error, PermissionError) or error.errno == errno.EROFS:
                raise ConfigError(
                    f"{self._place} cannot be written: {error.strerror}", hint="choose another path"
                ) from error
            raise RetriableError(message, hint=f"df -h {self._place}") from error
