"""The Hive sink: Parquet files, which become visible as partitions in the metastore."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.hive.partitions import check_columns, partition_directories, partition_sql, quoted
from headrace.connectors.shared import partition_columns
from headrace.connectors.shared.file_store import file_store_at
from headrace.connectors.shared.parquet_writer import write_files
from headrace.connectors.shared.partition_columns import BATCH
from headrace.core.error_markers import is_database_missing, is_metastore_locked
from headrace.core.sink import IdempotentSink, without_metadata
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.spark.origin_columns import stored_schema
from headrace.spark.shared_settings import session_settings
from headrace.spark.sql import literal, verbatim
from headrace.support.crashpoints import reach
from headrace.support.pipeline_folder import resolve_path
from headrace.support.validation import check_table_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.connectors.shared.file_store import FileStore
    from headrace.types import Batch

_INTERNAL_DIRECTORY = "_headrace"
_CLAIM = "claim.json"
_CATALOG = "spark.sql.catalogImplementation"


class Hive(IdempotentSink):
    """Writes each batch as a partition `headrace_batch=<ranges>` of the table, or one per value of `partition_by`.

    The sink first writes the files to a directory that no reader reads. Then one call adds all partitions of the batch
    to the metastore in one transaction. The name of a partition is derived from the ranges, so a repeated batch is
    recognised.
    """

    needs_one_task_per_partition = False

    spark_options = MappingProxyType({_CATALOG: "hive"})
    """Static settings that a session for this sink must be started with."""

    def __init__(
        self,
        table: str,
        *,
        partition_by: str | Sequence[str] | None = None,
        location: str | None = None,
        create: bool = True,
    ) -> None:
        check_table_name(table, max_parts=2, hint='table="clicks" or table="app.clicks"')
        if location is not None and not create:
            raise ConfigError(
                f"Hive({table!r}): expected no location= with create=False: the metastore has the table's",
                hint="leave location= out, or create=True",
            )
        self._table = table
        self._partition_by = partition_columns.parse_partition_by(partition_by)
        self._location = _resolve_location(location) if location is not None else None
        self._create = create
        self._pipeline = ""
        self._table_location = ""

    @property
    def identity(self) -> str:
        more = f", partition_by={list(self._partition_by)!r}" if self._partition_by else ""
        return f"sinks.Hive({self._table!r}{more})"

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._partition_by

    def open(self, pipeline: str) -> Self:
        self._pipeline, self._table_location = pipeline, ""
        return super().open(pipeline)

    def close(self) -> None:
        super().close()
        self._pipeline = ""

    def prepare(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            self._prepare(active, schema)

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. write the files to a staging directory; 2. sync them; 3. claim the batch for them; 4. add the partitions
        of the attempt that holds the claim, all in one transaction.

        Two attempts may have different partitions if the transform is not deterministic. The metastore would add both.
        """
        self.require_open(self._pipeline or None)
        spark = rows.sparkSession
        if not self._table_location:
            self._prepare(spark, rows.schema)
        name = f"{self._pipeline}-{batch.fingerprint}"
        with _translate_error(self._table):
            if self._is_published(spark, name):
                return
            files = file_store_at(spark, self._table_location)
            attempts = f"{_INTERNAL_DIRECTORY}/{name}"
            attempt = f"{attempts}/{uuid.uuid4().hex}"
            write_files(without_metadata(rows), f"{self._table_location}/{attempt}", self._partition_by)
            reach("hive: files staged")
            files.fsync(files.list_files(attempt))
            directories = self._list_partitions(files, attempt)
            claim = f"{attempts}/{_CLAIM}"
            if not files.put(claim, json.dumps([attempt, directories]).encode()):
                attempt, directories = json.loads(files.read(claim) or "[]")
                if self._list_partitions(files, attempt) != directories:
                    raise RetriableError(
                        f"{self!r}: batch {batch.id} was claimed for files that no longer exist: {files.uri(attempt)}",
                        hint=f"stop what removes them, then delete {files.uri(claim)}",
                    )
            reach("hive: claimed")
            if directories and not self._add_partitions(spark, name, directories, attempt):
                return
            reach("hive: partitions added")
            # Files of other attempts at this batch can no longer become visible. The claim stays: one may be late.
            others = (file for file in files.list_files(attempts) if not file.startswith(f"{attempt}/"))
            files.remove(other for other in others if other != claim)

    def _list_partitions(self, files: FileStore, attempt: str) -> list[str]:
        """The partitions that an attempt has files for."""
        names = [file.removeprefix(f"{attempt}/") for file in files.list_files(attempt)]
        return partition_directories(names, len(self._partition_by))

    def _add_partitions(self, spark: SparkSession, name: str, directories: Sequence[str], attempt: str) -> bool:
        """Add all partitions of an attempt or none. False if another attempt has already added the batch."""
        location = f"{self._table_location}/{attempt}"
        added = " ".join(partition_sql(directory, name, location) for directory in directories)
        try:
            # Spark sends 100 at a time, each its own transaction; a batch must be one.
            with session_settings(spark, {"spark.sql.addPartitionInBatch.size": str(len(directories))}):
                _sql(spark, f"ALTER TABLE {quoted(self._table)} ADD {added}")
        except Exception:
            # Without IF NOT EXISTS the call fails if another attempt was first, or if this call succeeded and only its
            # reply was lost. So remove no files: the partitions may be those of this call.
            if self._is_published(spark, name):
                return False
            raise
        return True

    def _is_published(self, spark: SparkSession, name: str) -> bool:
        published = _sql(spark, f"SHOW PARTITIONS {quoted(self._table)} PARTITION ({BATCH} = '{name}')")
        return bool(published.take(1))

    def check_target(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            self._check(active, schema)

    def _prepare(self, spark: SparkSession, schema: StructType) -> None:
        if not self._check(spark, schema):
            with _translate_error(self._table):
                self._create_table(spark, stored_schema(schema))
        with _translate_error(self._table):
            details = _sql(spark, f"DESCRIBE EXTENDED {quoted(self._table)}").collect()
        self._table_location = next(row["data_type"] for row in details if row["col_name"] == "Location").rstrip("/")

    def _check(self, spark: SparkSession, schema: StructType) -> bool:
        """Whether the table exists. ConfigError if the rows do not fit it, or it cannot be created."""
        if spark.conf.get(_CATALOG, "in-memory") != "hive":
            raise ConfigError(
                f"{self!r} needs a Spark session with Hive, and this one was started without it",
                hint=f'--spark {_CATALOG}=hive, or in the TOML file: [spark] "{_CATALOG}" = "hive"',
            )
        stored = stored_schema(schema)
        partition_columns.check(stored, self._partition_by, self._table)
        with _translate_error(self._table):
            if not spark.catalog.tableExists(self._table):
                if not self._create:
                    raise ConfigError(f"there is no table {self._table}", hint="create=True makes it")
                return False
            columns = [
                (column.name, column.dataType, column.isPartition) for column in spark.catalog.listColumns(self._table)
            ]
            check_columns(stored, columns, self._partition_by, self._table)
            return True

    def _create_table(self, spark: SparkSession, schema: StructType) -> None:
        columns = [f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields]
        by = ", ".join(quoted(name) for name in (*self._partition_by, BATCH))
        location = " LOCATION " + literal(self._location) if self._location else ""
        _sql(
            spark,
            f"CREATE TABLE IF NOT EXISTS {quoted(self._table)} ({', '.join(columns)}, {BATCH} STRING)"
            f" USING parquet PARTITIONED BY ({by}){location}",
        )


def _resolve_location(location: str) -> str:
    """Resolve a relative path against the folder of the pipeline's file; Spark would use that of the database."""
    text = str(location)
    return text if ":/" in text else str(resolve_path(text))


def _sql(spark: SparkSession, statement: str) -> DataFrame:
    with verbatim(spark):
        return spark.sql(statement)


@contextmanager
def _translate_error(table: str) -> Iterator[None]:
    """Translate the metastore's errors to Headrace's within the block."""
    try:
        yield
    except Exception as error:
        message = " ".join(_messages(error))
        if is_metastore_locked(message):
            raise OffsetConflict(
                f"{table}: another process has the metastore open, and Derby allows one at a time",
                hint="stop it, or use a metastore with a server: spark.hadoop.hive.metastore.uris=thrift://…",
            ) from error
        if is_database_missing(message):
            raise ConfigError(f"{table}: there is no such database", hint="CREATE DATABASE …") from error
        raise


def _messages(error: BaseException) -> Iterator[str]:
    """The message of an error and those of its Java causes."""
    yield str(error)
    java: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while java is not None:
        yield str(java.getMessage())
        java = java.getCause()
