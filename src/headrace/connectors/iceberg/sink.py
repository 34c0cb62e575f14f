"""An Iceberg table: executors write Parquet files, the driver adds them together with the batch's number."""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlparse

from headrace.connectors.shared.batch_ledger import LastBatch, newer_batch
from headrace.connectors.shared.parquet_writer import write_files
from headrace.connectors.shared.schema_check import missing_columns, plain, refuse_types, schema_mismatch
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
_SQLITE, _TABLES = "sqlite:///", "iceberg_tables"


class Iceberg(IdempotentSink):
    """Appends to `table` ("namespace.name") of an Iceberg catalog, which pyiceberg opens by `catalog` and `properties`.

    The table remembers the newest batch in its property `headrace.<pipeline>`, in the same commit as the rows.
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
            raise ConfigError(f"table={table!r}: a namespace and a name are meant", hint='sinks.Iceberg("web.clicks")')
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
        place = masked(self._properties.get("uri", self._catalog))
        return f"sinks.Iceberg({self._table!r}, catalog at {place})"

    def secrets(self) -> frozenset[str]:
        return secrets_of(self._properties)

    def open(self, pipeline: str) -> Self:
        require("pyiceberg", extra="iceberg")
        self._pipeline = pipeline
        return super().open(pipeline)

    def prepare(self, schema: StructType) -> None:
        with self._translated():
            self._fitting(stored_schema(schema))

    def check_reachable(self) -> None:
        with self._translated():
            if self._looked_up() is None:
                self._check_new()

    def check_target(self, schema: StructType) -> None:
        rows = stored_schema(schema)
        with self._translated():
            refuse_types(rows, _TYPES, "Iceberg")
            table = self._looked_up()
            if table is None:
                self._check_new()
            else:
                self._missing(table, rows)

    def last_batch(self) -> int:
        with self._translated():
            table = self._load()
            return self._newest(table).id if table else 0

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. look up the newest batch; 2. write files; 3. make them durable; 4. commit them on what 1 has seen."""
        self.require_open(self._pipeline or None)
        rows = without_metadata(rows)
        with self._translated():
            table = self._fitting(rows.schema)
            newest = self._newest(table)
        spark = rows.sparkSession
        metadata = Folder(spark, f"{table.location().rstrip('/')}/metadata")
        if newest.holds(batch, self):
            metadata.sync()  # the run that committed it may have died before its own sync
            return
        ours = f"{table.location().rstrip('/')}/data/headrace/{self._pipeline}"
        folder = f"{batch.id}-{batch.fingerprint}-{uuid.uuid4().hex[:12]}"
        counted = write_files(rows, f"{ours}/{folder}")
        reach("iceberg: files written")
        with self._translated():
            written = Folder(spark, f"{ours}/{folder}")
            files = self._counted(table, batch, written, counted)
            if files is None:
                return
            written.sync()
            reach("iceberg: files durable")
            committed = self._commit(table, newest, batch, files)
            reach("iceberg: committed")
            metadata.sync()
            if committed:
                left = Folder(spark, ours)
                for name in newer_batch(left.names(), newest.id, batch.id, folder):
                    left.remove(name)
        reach("iceberg: cleared")

    def _opened_catalog(self, **more: str) -> Any:
        catalogs = require("pyiceberg.catalog", extra="iceberg")
        catalog = catalogs.load_catalog(self._catalog, **{**self._properties, **more})
        if urlparse(str(catalog.properties.get("warehouse", "s3:"))).scheme in ("", "file"):
            # A catalog that names metadata which a power cut took would take every batch before along.
            catalog.properties.setdefault("py-io-impl", "headrace.connectors.iceberg.synced_files.SyncedFileIO")
        return catalog

    def _looked_up(self) -> Any:
        """As `_load`, of a catalog that is left as it is: of itself pyiceberg makes its tables in a database."""
        uri = str(self._properties.get("uri", ""))
        if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).exists():
            return None
        catalog = self._opened_catalog(init_catalog_tables="false")
        engine = getattr(catalog, "engine", None)
        if engine is not None and not require("sqlalchemy", extra="iceberg").inspect(engine).has_table(_TABLES):
            return None
        return self._load(catalog)

    def _load(self, catalog: Any = None) -> Any:
        catalog = catalog or self._opened_catalog()
        try:
            table = catalog.load_table(self._table)
        except require("pyiceberg.exceptions", extra="iceberg").NoSuchTableError:
            return None
        # In this handle alone, and never stored. Left to itself, pyiceberg answers a conflict by adding the same files
        # behind the other commit and setting our property over what that one has set: a batch would be there twice.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def _fitting(self, rows: StructType) -> Any:
        """The table as it is now, fit for `rows`. ConfigError, showing both, if it is not and cannot be made so."""
        refuse_types(rows, _TYPES, "Iceberg")
        table = self._load() or self._created(rows)
        there = _spark_schema(table)
        missing = self._missing(table, rows)
        if missing.fields:
            with table.update_schema() as update:
                update.union_by_name(_arrow_schema(missing))
            reach("iceberg: widened")
            table = self._load()
        mapping = table.metadata.name_mapping()
        if mapping is not None and (unknown := set(rows.names) - {n for field in mapping for n in field.names}):
            raise schema_mismatch(
                rows, there, self, f"its name mapping lacks {', '.join(sorted(unknown))}: they would be null"
            )
        return table

    def _missing(self, table: Any, rows: StructType) -> StructType:
        """The columns that the table is to be given. ConfigError if the rows would not fit then."""
        there = _spark_schema(table)
        missing = missing_columns(rows, there, self, _unmet(table))
        if missing.fields and not self._evolve:
            lacking = ", ".join(missing.names)
            raise schema_mismatch(rows, there, self, f"the table lacks {lacking} (evolve=True adds columns)")
        return missing

    def _check_new(self) -> None:
        if not self._create:
            raise ConfigError(f"{self!r}: there is no such table, and create=False", hint="create=True makes it")

    def _created(self, rows: StructType) -> Any:
        self._check_new()
        catalog = self._opened_catalog()
        catalog.create_namespace_if_not_exists(self._table.rpartition(".")[0])
        catalog.create_table_if_not_exists(self._table, _arrow_schema(plain(rows)))
        reach("iceberg: created")
        return self._load()

    @property
    def _property(self) -> str:
        return f"headrace.{self._pipeline}"

    def _newest(self, table: Any) -> LastBatch:
        said = table.metadata.properties.get(self._property)
        return LastBatch(**json.loads(said)) if said else LastBatch()

    def _counted(self, table: Any, batch: Batch, folder: Folder, counted: int) -> list[str] | None:
        """The files that have rows; None when another run committed the batch, and so removed them."""
        with suppress(FileNotFoundError):
            rows = {file: _rows(table, file) for file in folder.parquet_files()}
            if sum(rows.values()) == counted:
                return [file for file, number in rows.items() if number]
        if self._newest(self._load()).holds(batch, self):
            return None
        raise RetriableError(
            f"{self!r}: the files in {folder} are not what was written", hint="who removes files there?"
        )

    def _commit(self, table: Any, seen: LastBatch, batch: Batch, files: Sequence[str]) -> bool:
        """Add the files and set the property in one commit; False when the batch was there already.

        A commit on another snapshot than the table's newest is refused by the catalog. So each try begins with a look.
        """
        refused = require("pyiceberg.exceptions", extra="iceberg").CommitFailedException
        said = {"headrace.pipeline": self._pipeline, "headrace.batch": batch.to_json()}
        number = json.dumps({"id": batch.id, "fingerprint": batch.fingerprint})
        for _ in _COMMITS.tries():
            transaction = table.transaction()
            try:
                if files:
                    transaction.add_files(list(files), snapshot_properties=said, check_duplicate_files=False)
                else:
                    # A batch without rows makes a snapshot, too: a property alone could be set by two at once.
                    with transaction.update_snapshot(snapshot_properties=said).fast_append():
                        pass
                transaction.set_properties({self._property: number})
                transaction.commit_transaction()
            except (refused, FileNotFoundError):  # another run has committed; it may have removed our files already
                table = self._load()
                now = self._newest(table)
                if now == seen:
                    continue  # a writer of another kind
                if now.holds(batch, self):
                    return False
                raise now.conflict(batch, self) from None
            return True
        raise RetriableError(
            f"{self!r}: {_COMMITS.attempts} commits of others came first", hint="who else writes to the table?"
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        exceptions = require("pyiceberg.exceptions", extra="iceberg")
        sql = require("sqlalchemy.exc", extra="iceberg")
        try:
            yield
        except (exceptions.ValidationError, exceptions.NoSuchNamespaceError, ValueError, PermissionError) as error:
            raise ConfigError(f"{self!r}: {error}", hint="check the catalog's properties and the table") from error
        except (OSError, sql.SQLAlchemyError, exceptions.RESTError, exceptions.CommitFailedException) as error:
            raise RetriableError(f"{self!r}: {error}", hint="is the catalog reachable?") from error


def _rows(table: Any, file: str) -> int:
    from pyarrow import parquet

    with table.io.new_input(file).open() as stream:
        return int(parquet.read_metadata(stream).num_rows)


def _unmet(table: Any) -> str:
    """Why this table is not for this writer; empty if it is."""
    if not table.spec().is_unpartitioned():
        return f"it is partitioned ({table.spec()}), and the files of a batch are not"
    if required := [field.name for field in table.schema().fields if field.required]:
        return f"{required[0]} is required, and rows may lack it"
    return ""


def _spark_schema(table: Any) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)


def _arrow_schema(schema: StructType) -> Any:
    """In Arrow's words, which pyiceberg takes. Spark's own converter is not public, and another in every version."""
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
