"""A table in a DuckDB file, with the offsets beside it in the same transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import stores
from headrace.crashpoints import reach
from headrace.errors import ConfigError
from headrace.extras import require
from headrace.sinks.base import TransactionalSink, without_metadata
from headrace.stores import sql

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.types import Batch


class DuckDB(stores.DuckDB, TransactionalSink):
    """Appends to `table` in the file at `path`, creating both when they are not there.

    Rows pass through the driver as Arrow. DuckDB lets one process at a time into a file that is written, so
    the table is read by others when the pipeline is not running.
    """

    def __init__(self, path: str | Path, *, table: str, mirror: bool | str = False) -> None:
        if not isinstance(table, str) or not all(table.split(".")):
            raise ConfigError(f"table={table!r} is not a table's name", hint='table="clicks"')
        super().__init__(path, mirror=mirror)
        self._table = table

    def __repr__(self) -> str:
        return f"sinks.DuckDB({str(self._path)!r}, table={self._table!r})"

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. read the rows; in one transaction 2. compare-and-set the offsets and 3. insert the rows."""
        arrow = without_metadata(rows).toArrow()
        reach("duckdb: rows read")
        self._connected().register("headrace_rows", arrow)
        try:
            with self.transaction() as connection:
                state = sql.read(connection, self._pipeline)
                sql.write(connection, self._pipeline, state, state.committed(batch))
                reach("duckdb: offsets moved")
                self._insert(connection, arrow.schema)
                reach("duckdb: rows inserted")
        finally:
            self._connected().unregister("headrace_rows")
        reach("duckdb: committed")

    def _insert(self, connection: Any, schema: Any) -> None:
        duckdb = require("duckdb", extra="duckdb")
        target = ".".join(_quoted(part) for part in self._table.split("."))
        there: list[Any] = []
        try:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {target} AS FROM headrace_rows LIMIT 0")
            # Asked now: after a refused row the transaction answers nothing any more.
            there = connection.execute(f"DESCRIBE {target}").fetchall()
            connection.execute(f"INSERT INTO {target} BY NAME FROM headrace_rows")
        except (
            duckdb.BinderException,
            duckdb.CatalogException,
            duckdb.ConstraintException,
            duckdb.ConversionException,
        ) as error:
            raise ConfigError(
                f"the rows do not fit {self._table} in {self._path}: {error};"
                f" rows: {', '.join(f'{f.name} {f.type}' for f in schema)};"
                f" table: {', '.join(f'{name} {kind}' for name, kind, *_ in there) or 'none'}",
                hint="change the transform, or name another table",
            ) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
