"""The Iceberg sink: executors write Parquet files; the driver commits them together with the batch id."""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlparse

from headrace.connectors.shared.batch_ledger import LastBatch, abandoned_folders
from headrace.connectors.shared.parquet_writer import write_files
from headrace.connectors.shared.schema_check import missing_columns, nullable_schema, refuse_types, schema_mismatch
from headrace.core.sink import IdempotentSink, without_metadata
from headrace.errors import ConfigError, RetriableError
from headrace.spark.hadoop_fs import Folder
from headrace.spark.origin_columns import stored_schema
from headrace.support.crashpoints import reach
from headrace.support.optional_imports import require
from headrace.support.redaction import is_ambiguous, masked, secrets_of
from headrace.support.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from headrace.types import Batch

_TYPES = frozenset(
    {"boolean", "int", "bigint", "float", "double", "decimal", "string", "binary", "date", "timestamp", "timestamp_ntz"}
)
_IDENTIFIER = re.compile(r"[^.\s]+(\.[^.\s]+)+")
_COMMITS = RetryPolicy(attempts=20)
_SQLITE, _CATALOG_TABLE = "sqlite:///", "iceberg_tables"


class Iceberg(IdempotentSink):
    """Appends to `table` ("namespace.name") of an Iceberg catalog. pyiceberg loads it by `catalog` and `properties`.

    The table property `headrace.<pipeline>` records the newest batch in the same commit as its rows.
    """

    driver = ("pyiceberg", "iceberg")

    needs_one_task_per_partition = False

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        create: bool = True,
        evolve: bool = False,
    ) -> None:
        if not isinstance(table, str) or not _IDENTIFIER.fullmatch(table):
            raise ConfigError(f"table={table!r}: expected a namespace and a name", hint='sinks.Iceberg("web.clicks")')
        if is_ambiguous(uri := str((properties or {}).get("uri", ""))):
            raise ConfigError(f"uri={masked(uri)!r} has more than one @", hint="write %40 for an @ in the password")
        self._table = table
        self._catalog = catalog
        self._properties = dict(properties or {})
        self._create = create
        self._evolve = evolve
        self._pipeline = ""

    @property
    def identity(self) -> str:
        catalog = masked(self._properties.get("uri", self._catalog))
        return f"sinks.Iceberg({self._table!r}, catalog at {catalog})"

    def secrets(self) -> frozenset[str]:
        return secrets_of(self._properties)

    def open(self, pipeline: str) -> Self:
        require("pyiceberg", extra="iceberg")
        self._pipeline = pipeline
        return super().open(pipeline)

    def prepare(self, schema: StructType) -> None:
        with self._translating_errors():
            self._ensure_table(stored_schema(schema))

    def check_reachable(self) -> None:
        with self._translating_errors():
            if self._load_if_cataloged() is None:
                self._check_new()

    def check_target(self, schema: StructType) -> None:
        rows = stored_schema(schema)
        with self._translating_errors():
            refuse_types(rows, _TYPES, "Iceberg")
            table = self._load_if_cataloged()
            if table is None:
                self._check_new()
            else:
                self._missing_columns(table, rows)

    def last_batch(self) -> int:
        with self._translating_errors():
            table = self._load_table()
            return self._last_batch(table).id if table else 0

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. look up the newest batch; 2. write files; 3. sync them; 4. commit them on the snapshot of step 1."""
        self.require_open(self._pipeline or None)
        rows = without_metadata(rows)
        with self._translating_errors():
            table = self._ensure_table(rows.schema)
            newest = self._last_batch(table)
        spark = rows.sparkSession
        metadata = Folder(spark, f"{table.location().rstrip('/')}/metadata")
        if newest.holds(batch, self):
            metadata.sync()  # the run that committed it may have died before its sync
            return
        data = f"{table.location().rstrip('/')}/data/headrace/{self._pipeline}"
        folder = f"{batch.id}-{batch.fingerprint}-{uuid.uuid4().hex[:12]}"
        row_count = write_files(rows, f"{data}/{folder}")
        reach("iceberg: files written")
        with self._translating_errors():
            written = Folder(spark, f"{data}/{folder}")
            files = self._list_files_with_rows(table, batch, written, row_count)
            if files is None:
                return
            written.sync()
            reach("iceberg: files durable")
            committed = self._commit(table, newest, batch, files)
            reach("iceberg: committed")
            metadata.sync()
            if committed:
                attempts = Folder(spark, data)
                for name in abandoned_folders(attempts.names(), newest.id, batch.id, folder):
                    attempts.remove(name)
        reach("iceberg: cleared")

    def _load_catalog(self, **overrides: str) -> Any:
        catalogs = require("pyiceberg.catalog", extra="iceberg")
        catalog = catalogs.load_catalog(self._catalog, **{**self._properties, **overrides})
        if urlparse(str(catalog.properties.get("warehouse", "s3:"))).scheme in ("", "file"):
            # If a power failure loses metadata that the catalog refers to, all earlier batches are lost, too.
            catalog.properties.setdefault("py-io-impl", "headrace.connectors.iceberg.synced_files.SyncedFileIO")
        return catalog

    def _load_if_cataloged(self) -> Any:
        """As `_load_table`, but does not change a SQL catalog, in which pyiceberg creates its tables by default."""
        uri = str(self._properties.get("uri", ""))
        if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).exists():
            return None
        catalog = self._load_catalog(init_catalog_tables="false")
        engine = getattr(catalog, "engine", None)
        if engine is not None and not require("sqlalchemy", extra="iceberg").inspect(engine).has_table(_CATALOG_TABLE):
            return None
        return self._load_table(catalog)

    def _load_table(self, catalog: Any = None) -> Any:
        catalog = catalog or self._load_catalog()
        try:
            table = catalog.load_table(self._table)
        except require("pyiceberg.exceptions", extra="iceberg").NoSuchTableError:
            return None
        # Set in this handle only, never stored. By default pyiceberg retries after a conflict: it adds the same files
        # after the other commit and overwrites the property of this pipeline, so a batch would be stored twice.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def _ensure_table(self, rows: StructType) -> Any:
        """Load the table; create or evolve it for `rows`. ConfigError, with both schemas, if they do not fit."""
        refuse_types(rows, _TYPES, "Iceberg")
        table = self._load_table() or self._create_table(rows)
        existing = _spark_schema(table)
        missing = self._missing_columns(table, rows)
        if missing.fields:
            with table.update_schema() as update:
                update.union_by_name(_arrow_schema(missing))
            reach("iceberg: columns added")
            table = self._load_table()
        mapping = table.metadata.name_mapping()
        if mapping is not None and (unknown := set(rows.names) - {n for field in mapping for n in field.names}):
            raise schema_mismatch(
                rows, existing, self, f"its name mapping lacks {', '.join(sorted(unknown))}: they would be null"
            )
        return table

    def _missing_columns(self, table: Any, rows: StructType) -> StructType:
        """The columns to add to the table. ConfigError if the rows would not fit then."""
        existing = _spark_schema(table)
        missing = missing_columns(rows, existing, self, _unsupported_feature(table))
        if missing.fields and not self._evolve:
            lacking = ", ".join(missing.names)
            raise schema_mismatch(rows, existing, self, f"the table lacks {lacking} (evolve=True adds columns)")
        return missing

    def _check_new(self) -> None:
        if not self._create:
            raise ConfigError(f"{self!r}: there is no such table, and create=False", hint="create=True makes it")

    def _create_table(self, rows: StructType) -> Any:
        self._check_new()
        catalog = self._load_catalog()
        catalog.create_namespace_if_not_exists(self._table.rpartition(".")[0])
        catalog.create_table_if_not_exists(self._table, _arrow_schema(nullable_schema(rows)))
        reach("iceberg: created")
        return self._load_table()

    @property
    def _property(self) -> str:
        return f"headrace.{self._pipeline}"

    def _last_batch(self, table: Any) -> LastBatch:
        stored = table.metadata.properties.get(self._property)
        return LastBatch(**json.loads(stored)) if stored else LastBatch()

    def _list_files_with_rows(self, table: Any, batch: Batch, folder: Folder, row_count: int) -> list[str] | None:
        """The files that have rows; None if another run committed the batch and removed them."""
        with suppress(FileNotFoundError):
            rows = {file: _count_rows(table, file) for file in folder.parquet_files()}
            if sum(rows.values()) == row_count:
                return [file for file, count in rows.items() if count]
        if self._last_batch(self._load_table()).holds(batch, self):
            return None
        raise RetriableError(
            f"{self!r}: files in {folder} were removed or changed after they were written",
            hint="does another program remove files there?",
        )

    def _commit(self, table: Any, newest: LastBatch, batch: Batch, files: Sequence[str]) -> bool:
        """Add the files and set the property in one commit; False if the batch was already committed.

        The catalog refuses a commit on any snapshot but the newest. So each attempt first reads the table again.
        """
        conflict = require("pyiceberg.exceptions", extra="iceberg").CommitFailedException
        summary = {"headrace.pipeline": self._pipeline, "headrace.batch": batch.to_json()}
        last_batch = json.dumps({"id": batch.id, "fingerprint": batch.fingerprint})
        for _ in _COMMITS.tries():
            transaction = table.transaction()
            try:
                if files:
                    transaction.add_files(list(files), snapshot_properties=summary, check_duplicate_files=False)
                else:
                    # A batch without rows also creates a snapshot: otherwise two concurrent runs could both commit.
                    with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                        pass
                transaction.set_properties({self._property: last_batch})
                transaction.commit_transaction()
            except (conflict, FileNotFoundError):  # another run has committed and may have removed these files
                table = self._load_table()
                now = self._last_batch(table)
                if now == newest:
                    continue  # a writer other than Headrace
                if now.holds(batch, self):
                    return False
                raise now.conflict(batch, self) from None
            return True
        raise RetriableError(
            f"{self!r}: {_COMMITS.attempts} commits of others came first", hint="stop other writers of the table"
        )

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        exceptions = require("pyiceberg.exceptions", extra="iceberg")
        sql = require("sqlalchemy.exc", extra="iceberg")
        try:
            yield
        except (exceptions.ValidationError, exceptions.NoSuchNamespaceError, ValueError, PermissionError) as error:
            raise ConfigError(f"{self!r}: {error}", hint="check the catalog's properties and the table") from error
        except (OSError, sql.SQLAlchemyError, exceptions.RESTError, exceptions.CommitFailedException) as error:
            raise RetriableError(f"{self!r}: {error}", hint="is the catalog reachable?") from error


def _count_rows(table: Any, file: str) -> int:
    from pyarrow import parquet

    with table.io.new_input(file).open() as stream:
        return int(parquet.read_metadata(stream).num_rows)


def _unsupported_feature(table: Any) -> str:
    """The table feature that this writer does not support; empty if it supports all."""
    if not table.spec().is_unpartitioned():
        return f"it is partitioned ({table.spec()}), and the files of a batch are not"
    if required := [field.name for field in table.schema().fields if field.required]:
        return f"{required[0]} is required, and rows may lack it"
    return ""


def _spark_schema(table: Any) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)


def _arrow_schema(schema: StructType) -> Any:
    """The schema for pyiceberg. Spark's converter to Arrow is private and differs between versions."""
    import pyarrow as pa

    return pa.schema([(field.name, _arrow_type(field.dataType)) for field in schema.fields])


def _arrow_type(kind: DataType) -> Any:
    import pyarrow as pa
    from pyspark.sql import types as t

    match kind:
        case t.StructType():
            return pa.struct([(field.name, _arrow_type(field.dataType)) for field in kind.fields])
        case t.ArrayType():
            return pa.list_(_arrow_type(kind.elementType))
        case t.MapType():
            return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
        case t.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    plain_types = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    return plain_types[kind.simpleString()]
