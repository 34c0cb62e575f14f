"""The SQLite sink: writes rows and offsets to a file in one transaction."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.sql.embedded_sink import ROWS, EmbeddedTable
from headrace.connectors.sql.identifiers import quoted, quoted_list
from headrace.connectors.sql.table_check import Column
from headrace.connectors.sql.upsert import DELETED, OFFSET, ORIGIN, WriteMode, row_exists_error
from headrace.connectors.sqlite import offset_store
from headrace.core.dead_letters import rejected_row_error
from headrace.errors import ConfigError
from headrace.spark.sql import column_of, time_text, times_in_utc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


class SQLite(EmbeddedTable):
    """Appends rows to `table` in the file at `path`, or replaces the row with the same `key`. The sink creates the file
    and the table if they do not exist. See `sinks.Postgres` for the modes.

    Rows pass through the driver. Other processes can read the file at the same time and see complete batches.
    """

    _offsets: offset_store.SQLite
    _guard_types: ClassVar[Mapping[str, str]] = {ORIGIN: "TEXT", OFFSET: "INTEGER", DELETED: "INTEGER"}

    def __init__(
        self,
        path: str | Path,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        mode: str = "append",
        deleted: str = "deleted",
        create: bool = True,
        evolve: bool = False,
    ) -> None:
        write_mode = WriteMode.of(table, key, mode, deleted)
        super().__init__(offset_store.SQLite(path), write_mode, create=create, evolve=evolve)

    def _column_types(self, schema: StructType) -> dict[str, str]:
        return {field.name: _affinity(field.dataType) for field in schema}

    def _read_columns(self, connection: Any, table: str) -> list[Column]:
        schema, _, table = table.rpartition(".")
        columns = connection.execute(
            'SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_info(?, ?)',
            [table, schema or "main"],
        ).fetchall()
        return [Column(name, kind, kind, bool(required)) for name, kind, required in columns]

    def _accepts(self, row_type: str, column: Column) -> bool:
        return True  # any column accepts any value; rows that a STRICT table rejects are found later

    def _to_arrow(self, rows: DataFrame) -> Any:
        utc = times_in_utc(rows)
        return rows.select(*[_value(field.name, field.dataType, utc=utc) for field in rows.schema]).toArrow()

    @contextmanager
    def _staged(self, connection: Any, rows: Any) -> Iterator[None]:
        names = rows.schema.names
        connection.execute(f"CREATE TEMP TABLE {ROWS} ({quoted_list(names)})")
        insert = f"INSERT INTO {ROWS} VALUES ({', '.join('?' * len(names))})"
        for batch in rows.to_batches(max_chunksize=10_000):
            columns = [column.to_pylist() for column in batch.columns]
            connection.executemany(insert, zip(*columns, strict=True))
        yield
        connection.execute(f"DROP TABLE {ROWS}")  # after an error the rollback removes it

    @contextmanager
    def _connected_read_only(self) -> Iterator[Any]:
        # A file without a -wal file is not open anywhere: open it as immutable, so that SQLite does not create one.
        path = self._offsets.path
        immutable = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
        uri = f"{path.absolute().as_uri()}?mode=ro{immutable}" if path.exists() else ":memory:"
        with self._offsets.translating_errors(), closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection

    @contextmanager
    def _translating_row_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorname in {"SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"}:
                raise row_exists_error(self, error) from error
            raise rejected_row_error(repr(self), error) from error
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_ERROR":
                raise
            hint = "change the transform, or the table"
            if "ON CONFLICT" in str(error):
                table, key = self._write_mode.name, quoted_list(self._write_mode.key)
                hint = f"CREATE UNIQUE INDEX {quoted('key')} ON {table} ({key})"
            raise ConfigError(f"the rows do not fit {self!r}: {error}", hint=hint) from error


def _affinity(kind: DataType) -> str:
    from pyspark.sql import types

    match kind:
        case types.BooleanType() | types.ByteType() | types.ShortType() | types.IntegerType() | types.LongType():
            return "INTEGER"
        case types.FloatType() | types.DoubleType():
            return "REAL"
        case types.BinaryType():
            return "BLOB"
    return "TEXT"


def _value(name: str, kind: DataType, *, utc: bool) -> Expression:
    """The column as SQLite stores it: numbers, text and bytes; other types as text."""
    from pyspark.sql import functions as sql
    from pyspark.sql import types

    column = column_of(name)
    match kind:
        case types.BooleanType():
            stored = column.cast("int")
        case types.TimestampType():
            stored = time_text(column, utc=utc)
        case types.ArrayType() | types.MapType() | types.StructType():
            stored = sql.to_json(column, {"ignoreNullFields": "false"})
        case types.VariantType():
            stored = sql.to_json(column)
        case _ if _affinity(kind) == "TEXT":
            stored = column.cast("string")
        case _:
            stored = column
    return stored.alias(name)
