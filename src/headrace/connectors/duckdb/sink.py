"""The DuckDB sink: writes rows and offsets to a file in one transaction."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.duckdb import offset_store
from headrace.connectors.sql.embedded_sink import ROWS, EmbeddedTable
from headrace.connectors.sql.table_check import Column
from headrace.connectors.sql.upsert import DELETED, OFFSET, ORIGIN, WriteMode, row_exists_error
from headrace.core.dead_letters import rejected_row_error
from headrace.errors import ConfigError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_COLUMNS = """SELECT column_name, data_type, NOT is_nullable AND column_default IS NULL FROM duckdb_columns()
    WHERE table_name = ? AND schema_name = coalesce(?, current_schema()) AND database_name = current_database()
    ORDER BY column_index"""


class DuckDB(EmbeddedTable):
    """Appends rows to `table` in the file at `path`, or replaces the row with the same `key`. The sink creates the file
    and the table if they do not exist. See `sinks.Postgres` for the modes.

    Rows pass through the driver as Arrow. While a process writes a file, DuckDB lets no other process open it: other
    programs can read the table when the pipeline is not running.
    """

    driver = ("duckdb", "duckdb")
    _offsets: offset_store.DuckDB
    _guard_types: ClassVar[Mapping[str, str]] = {ORIGIN: "VARCHAR", OFFSET: "BIGINT", DELETED: "BOOLEAN"}

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
        super().__init__(offset_store.DuckDB(path), write_mode, create=create, evolve=evolve)

    def _column_types(self, schema: StructType) -> dict[str, str]:
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import VariantType

        try:
            if any(isinstance(field.dataType, VariantType) for field in schema):
                raise PySparkException("Arrow has no type for VARIANT")
            empty = to_arrow_schema(schema, timezone="UTC").empty_table()
        except PySparkException as error:
            columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
            raise ConfigError(
                f"{self!r}: the rows cannot be converted to Arrow: {error}; columns: {columns}",
                hint="cast it in the transform, for example to STRING, or to_json(…)",
            ) from error
        duckdb = require("duckdb", extra="duckdb")
        with closing(duckdb.connect(":memory:")) as connection, self._staged(connection, empty):
            return {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE {ROWS}").fetchall()}

    def _read_columns(self, connection: Any, table: str) -> list[Column]:
        schema, _, table = table.rpartition(".")
        columns = connection.execute(_COLUMNS, [table, schema or None]).fetchall()
        return [Column(name, kind, kind, required) for name, kind, required in columns]

    def _accepts(self, row_type: str, column: Column) -> bool:
        return _is_nested(row_type) == _is_nested(column.type)

    def _to_arrow(self, rows: DataFrame) -> Any:
        return rows.toArrow()

    @contextmanager
    def _staged(self, connection: Any, rows: Any) -> Iterator[None]:
        connection.register(ROWS, rows)
        yield
        connection.unregister(ROWS)  # after an error the rollback removes it

    @contextmanager
    def _connected_read_only(self) -> Iterator[Any]:
        duckdb = require("duckdb", extra="duckdb")
        path = self._offsets.path
        exists = path.exists()
        try:
            connection = duckdb.connect(str(path) if exists else ":memory:", read_only=exists)
        except duckdb.IOException as error:
            raise self._offsets.open_error(error) from error
        with closing(connection):
            yield connection

    @contextmanager
    def _translating_row_errors(self) -> Iterator[None]:
        duckdb = require("duckdb", extra="duckdb")
        try:
            yield
        except (duckdb.BinderException, duckdb.CatalogException) as error:
            key = self._write_mode.keyed and "conflict target" in str(error)
            raise ConfigError(
                f"the rows do not fit {self!r}: {error}",
                hint=f"the table needs a primary key: {', '.join(self._write_mode.key)}"
                if key
                else "change the transform",
            ) from error
        except duckdb.ConstraintException as error:
            if "uplicate key" in str(error):
                raise row_exists_error(self, error) from error
            raise rejected_row_error(repr(self), error) from error
        except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as error:
            raise rejected_row_error(repr(self), error) from error


def _is_nested(kind: str) -> bool:
    return kind.endswith(("]", ")")) and not kind.startswith(("DECIMAL", "ENUM"))
