"""The JDBC sink: executors fill a staging table; one transaction publishes it and records the batch id."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from headrace.connectors.jdbc.connection import Database, session
from headrace.connectors.shared.batch_ledger import LastBatch
from headrace.connectors.shared.schema_check import refuse_types, schema_mismatch
from headrace.core import topic_check
from headrace.core.sink import METADATA, IdempotentSink, without_metadata
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.spark.origin_columns import stored_schema
from headrace.spark.sql import column_of
from headrace.support.crashpoints import reach
from headrace.support.redaction import masked, secrets_of
from headrace.support.validation import check_table_name
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    from headrace.connectors.jdbc.connection import Connection
    from headrace.types import Batch

_LEDGER = "headrace_batches"
_CREATE_LEDGER = f"""CREATE TABLE {_LEDGER} (pipeline VARCHAR(100) NOT NULL, target VARCHAR(200) NOT NULL,
    batch_id BIGINT NOT NULL, fingerprint VARCHAR(40) NOT NULL, PRIMARY KEY (pipeline, target))"""
_MAX_TARGET_LENGTH = 200
# Creates an empty copy of some columns of a table; per database where the standard syntax does not work.
_COPY = "CREATE TABLE {staging} AS SELECT {columns} FROM {target} WHERE 1 = 0"
_COPY_BY_PRODUCT = {
    "Apache Derby": "CREATE TABLE {staging} AS SELECT {columns} FROM {target} WITH NO DATA",
    "Microsoft SQL Server": "SELECT {columns} INTO {staging} FROM {target} WHERE 1 = 0",
}
# A column accepts values of the types in its own group.
_GROUPS = {
    "number": ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
    "text": ("string", "varchar", "char"),
    "bytes": ("binary",),
    "date": ("date",),
    "time": ("timestamp", "timestamp_ntz"),
}
_GROUP = {kind: group for group, kinds in _GROUPS.items() for kind in kinds}


@dataclass(frozen=True, slots=True)
class _Target:
    """The table, quoted; its columns by their names in lower case."""

    name: str
    alias: str
    columns: Mapping[str, str]

    def quoted_columns(self, names: Sequence[str]) -> list[str]:
        return [self.columns[name.lower()] for name in names]


class Jdbc(IdempotentSink):
    """Appends to `table` in the database at `url`; with `key`, a row replaces the row with the same key.

    `properties` are passed to the driver (user, password and so on). `table` may be "schema.table". A repeated batch is
    recognised by its id in the table `headrace_batches`, which changes in the same transaction as the rows.
    """

    needs_one_task_per_partition = False

    def __init__(
        self,
        url: str,
        *,
        table: str,
        key: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        driver: str | None = None,
        create: bool = False,
    ) -> None:
        if not isinstance(url, str) or not url.startswith("jdbc:"):
            raise ConfigError(
                f"expected a URL that begins with jdbc:, got {masked(repr(url))}",
                hint='sinks.Jdbc("jdbc:mysql://localhost/app", table="clicks")',
            )
        check_table_name(table)
        self._database = Database(url, dict(properties or {}), driver)
        self._table = table
        self._key = [key] if isinstance(key, str) else list(key or [])
        self._create = create
        self._pipeline = ""
        self._cleared = False

    @property
    def identity(self) -> str:
        return f"sinks.Jdbc({str(self._database)!r}, table={self._table!r})"

    def secrets(self) -> frozenset[str]:
        return secrets_of(self._database.properties)

    @property
    def replaces_rows(self) -> bool:
        return bool(self._key)

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._key

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        self._cleared = False
        return super().open(pipeline)

    def prepare(self, schema: StructType) -> None:
        with self._database.connected() as connection:
            self._ensure_table(connection, stored_schema(schema))

    def check_target(self, schema: StructType) -> None:
        with self._database.connected() as connection:
            rows = stored_schema(schema)
            self._check_rows(rows)
            exists = connection.can_read(self._in_target_schema(connection, self._table.rpartition(".")[2]))
            if exists or not self._create:  # otherwise the sink creates it
                self._ensure_table(connection, rows)

    def last_batch(self) -> int:
        with self._database.connected() as connection:
            return self._last_batch(connection).id

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. look up the newest batch; 2. stage the rows; in one transaction 3. look again and 4. publish them."""
        self.require_open(self._pipeline or None)
        with self._database.connected() as connection:
            schema = without_metadata(rows).schema
            target = self._ensure_table(connection, schema)
            if self._last_batch(connection).holds(batch, self):
                return
            staging = self._in_target_schema(connection, f"{self._prefix}{uuid.uuid4().hex[:12]}")
            columns = ", ".join(target.quoted_columns(schema.names))
            copy = _COPY_BY_PRODUCT.get(connection.product, _COPY)
            connection.execute(copy.format(staging=staging, columns=columns, target=target.name))
            try:
                reach("jdbc: staging created")
                staged = self._stage(self._newest_by_key(rows), staging)
                reach("jdbc: rows staged")
                self._publish(connection, batch, target, staging, schema.names, staged)
                reach("jdbc: committed")
            finally:
                self._drop(connection, staging)
            self._clear(connection)
        reach("jdbc: cleared")

    @property
    def _prefix(self) -> str:
        """The prefix of the names of all staging tables of this pipeline and target."""
        return f"headrace_{hashlib.sha256(f'{self._pipeline} {self._table}'.encode()).hexdigest()[:12]}_"

    def _in_target_schema(self, connection: Connection, name: str) -> str:
        """The quoted name of a table in the schema of the target."""
        return ".".join(connection.quoted(part) for part in (*self._table.split(".")[:-1], name))

    def _ensure_table(self, connection: Connection, rows: StructType) -> _Target:
        """The target, created if that is allowed. ConfigError, with both schemas, if the rows do not fit."""
        self._check_rows(rows)
        name = self._in_target_schema(connection, self._table.rpartition(".")[2])
        options = self._database.options(name)
        if not connection.can_read(name):
            if not self._create:
                raise ConfigError(f"{self!r}: there is no such table, or no right to it", hint="create=True makes it")
            session().createDataFrame([], rows).write.format("jdbc").options(**options).save(mode="append")
            reach("jdbc: created")
        existing = session().read.format("jdbc").options(**options).load().schema
        groups = {field.name.lower(): _GROUP.get(_kind(field)) for field in existing.fields}
        lacking = [field.name for field in rows.fields if field.name.lower() not in groups]
        unfit = [field.name for field in rows.fields if groups.get(field.name.lower()) != _GROUP[_kind(field)]]
        if lacking or unfit:
            raise schema_mismatch(rows, existing, self, f"see {', '.join(lacking or unfit)}")
        columns = {field.name.lower(): connection.quoted(field.name) for field in existing.fields}
        return _Target(name, connection.quoted(self._table.rpartition(".")[2]), columns)

    def _check_rows(self, rows: StructType) -> None:
        """ConfigError for rows that no table accepts."""
        refuse_types(rows, frozenset(_GROUP), "a table behind JDBC", nested=False)
        if absent := [column for column in self._key if column not in rows.names]:
            message = f"{self!r}: the rows lack the key {', '.join(absent)}"
            raise ConfigError(message, hint=f"rows: {rows.simpleString()}")

    def _last_batch(self, connection: Connection) -> LastBatch:
        """The newest batch in the ledger, which is created if it does not exist."""
        if not connection.can_read(_LEDGER):
            with suppress(HeadraceError), self._database.translating_errors():  # another run may create it, too
                connection.execute(_CREATE_LEDGER)
        batches = self._read_ledger(connection)
        if not batches:
            # The transaction that publishes a batch locks this row.
            target = _shorten(connection.resolve(self._table))
            with suppress(HeadraceError), self._database.translating_errors():
                connection.execute(f"INSERT INTO {_LEDGER} VALUES (?, ?, 0, ?)", self._pipeline, target, "none")
            batches = self._read_ledger(connection)
        if not batches:
            raise ConfigError(
                f"{self!r}: {_LEDGER} cannot be written", hint=f"GRANT SELECT, INSERT, UPDATE ON {_LEDGER} to the user"
            )
        return _newest_batch(batches)

    def _read_ledger(self, connection: Connection) -> dict[str, LastBatch]:
        """The rows of this pipeline for this table, by the table name in each.

        One pipeline may fill several tables. Earlier versions stored a table's name as the user spelled it: the ledger
        may have both `rows` and `APP.rows`.
        """
        target = _shorten(connection.resolve(self._table))
        rows = connection.query(
            f"SELECT target, batch_id, fingerprint FROM {_LEDGER} WHERE pipeline = ?", self._pipeline
        )
        return {
            str(name): LastBatch(int(number), str(fingerprint))
            for name, number, fingerprint in rows
            if name == target or _shorten(connection.resolve(str(name))) == target
        }

    def _newest_by_key(self, rows: DataFrame) -> DataFrame:
        """The newest row of each key: the one with the highest offset."""
        from pyspark.sql import functions as f

        if not self._key or METADATA not in rows.columns:
            return without_metadata(rows)
        names = [name for name in rows.columns if name != METADATA]
        origin = f.struct(*(f.col(METADATA)[part] for part in ("offset", "partition", "topic")))
        all_columns = f.struct(*map(column_of, names))
        newest = rows.groupBy(*map(column_of, self._key)).agg(f.max_by(all_columns, origin).alias("newest"))
        return newest.select("newest.*")

    def _stage(self, rows: DataFrame, staging: str) -> int:
        """Let the executors fill the staging table; return the number of rows."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        observation = Observation()
        observed = rows.observe(observation, f.count(f.lit(1)).alias("rows"))
        observed.write.format("jdbc").options(**self._database.options(staging)).save(mode="append")
        topic_check.verify()
        return int(observation.get["rows"])

    def _publish(
        self, connection: Connection, batch: Batch, target: _Target, staging: str, names: Sequence[str], staged: int
    ) -> None:
        columns = ", ".join(target.quoted_columns(names))
        targets = sorted(self._read_ledger(connection))
        where = f"WHERE pipeline = ? AND target IN ({', '.join('?' * len(targets)) or 'NULL'})"
        with connection.transaction():
            # Changes no value, but locks the row in every database: from here on no other run can publish.
            connection.execute(f"UPDATE {_LEDGER} SET batch_id = batch_id {where}", self._pipeline, *targets)
            batches = self._read_ledger(connection)
            if sorted(batches) != targets or not batches:
                raise RetriableError(f"{self!r}: the rows of this pipeline in {_LEDGER} have changed")
            if _newest_batch(batches).holds(batch, self):
                return
            if self._key:
                self._replace(connection, target, staging)
            inserted = connection.execute(f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {staging}")
            if inserted != staged:
                # A task can commit its rows and still be reported as failed; its repeat commits them again.
                raise RetriableError(
                    f"{self!r}: {counted(inserted, 'row')} staged and {staged:,} computed; the batch is repeated",
                    hint="--spark spark.speculation=false",
                )
            reach("jdbc: rows inserted")
            values = (batch.id, batch.fingerprint, self._pipeline, *targets)
            connection.execute(f"UPDATE {_LEDGER} SET batch_id = ?, fingerprint = ? {where}", *values)
            reach("jdbc: ledger updated")

    def _replace(self, connection: Connection, target: _Target, staging: str) -> None:
        """Delete the rows that staged ones replace. ConfigError if a key is NULL or not unique."""
        key = target.quoted_columns(self._key)
        nulls = " OR ".join(f"{column} IS NULL" for column in key)
        if connection.query(f"SELECT COUNT(*) FROM {staging} WHERE {nulls}")[0][0]:
            raise ConfigError(f"{self!r}: a row has null in its key", hint="leave it out in the transform")
        columns = ", ".join(key)
        duplicates = f"SELECT {columns} FROM {staging} GROUP BY {columns} HAVING COUNT(*) > 1"
        if connection.query(f"SELECT COUNT(*) FROM ({duplicates}) d")[0][0]:
            raise ConfigError(
                f"{self!r}: a batch has several rows with one key, and nothing says which is newer",
                hint=f"keep the column {METADATA} in the transform",
            )
        same = " AND ".join(f"s.{column} = {target.alias}.{column}" for column in key)
        connection.execute(f"DELETE FROM {target.name} WHERE EXISTS (SELECT 1 FROM {staging} s WHERE {same})")

    def _drop(self, connection: Connection, staging: str) -> None:
        with suppress(HeadraceError), self._database.translating_errors():  # left for `_clear`
            connection.execute(f"DROP TABLE {staging}")

    def _clear(self, connection: Connection) -> None:
        """Once per run, after its first batch, drop the staging tables of dead runs.

        One may belong to a live run. Either this batch overtook that run, so its batch would be refused; or that run
        took over from this one, and its batch fails and is repeated.
        """
        if not self._cleared:
            for name in connection.tables(self._prefix):
                self._drop(connection, self._in_target_schema(connection, name))
        self._cleared = True


def _newest_batch(batches: Mapping[str, LastBatch]) -> LastBatch:
    return max(batches.values(), key=lambda batch: batch.id)


def _shorten(target: str) -> str:
    """The name of a table, shortened to the column of the ledger."""
    if len(target) <= _MAX_TARGET_LENGTH:
        return target
    return f"{target[: _MAX_TARGET_LENGTH - 41]}~{hashlib.sha256(target.encode()).hexdigest()[:40]}"


def _kind(field: StructField) -> str:
    return field.dataType.simpleString().partition("(")[0]
