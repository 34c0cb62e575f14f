"""A table in a DuckDB file, with the offsets beside it in the same transaction."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.crashpoints import reach
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.extras import require
from headrace.sinks.base import TransactionalSink, without_metadata
from headrace.stores import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from headrace.types import Batch, Progress


class DuckDB(TransactionalSink):
    """Appends to `table` in the file at `path`, creating both when they are not there.

    Rows pass through the driver as Arrow. DuckDB lets one process at a time into a file that is written, so
    the table is read by others when the pipeline is not running.
    """

    def __init__(self, path: str | Path, *, table: str) -> None:
        if not isinstance(table, str) or not all(table.split(".")):
            raise ConfigError(f"table={table!r} is not a table's name", hint='table="clicks"')
        self._path = Path(path)
        self._table = table
        self._pipeline = ""
        self._connection: Any = None

    def __repr__(self) -> str:
        return f"sinks.DuckDB({str(self._path)!r}, table={self._table!r})"

    def open(self, pipeline: str) -> Self:
        duckdb = require("duckdb", extra="duckdb")
        self._pipeline = pipeline
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self._path.parent}: {error.strerror}", hint="choose another path") from error
        try:
            self._connection = duckdb.connect(str(self._path))
        except duckdb.IOException as error:
            raise self._refused(str(error)) from error
        with self._translated():
            for table in sql.TABLES:
                self._connection.execute(table)
        return self

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def load(self) -> Progress:
        with self._transaction() as connection:
            return sql.load(connection, self._pipeline)

    def begin(self, batch: Batch) -> None:
        with self._transaction() as connection:
            sql.begin(connection, self._pipeline, batch)

    def commit(self, batch: Batch) -> None:
        with self._transaction() as connection:
            sql.commit(connection, self._pipeline, batch)

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. read the rows; in one transaction 2. compare-and-set the offsets and 3. insert the rows."""
        arrow = without_metadata(rows).toArrow()
        reach("duckdb: rows read")
        with self._transaction() as connection:
            sql.commit(connection, self._pipeline, batch)
            reach("duckdb: offsets moved")
            connection.register("headrace_rows", arrow)
            try:
                self._insert(connection, arrow.schema)
            finally:
                connection.unregister("headrace_rows")
            reach("duckdb: rows inserted")
        reach("duckdb: committed")

    def _insert(self, connection: Any, schema: Any) -> None:
        duckdb = require("duckdb", extra="duckdb")
        target = ".".join(_quoted(part) for part in self._table.split("."))
        connection.execute(f"CREATE TABLE IF NOT EXISTS {target} AS FROM headrace_rows LIMIT 0")
        try:
            connection.execute(f"INSERT INTO {target} BY NAME FROM headrace_rows")
        except (duckdb.BinderException, duckdb.ConversionException, duckdb.ConstraintException) as error:
            there = connection.execute(f"DESCRIBE {target}").fetchall()
            raise ConfigError(
                f"the rows do not fit {self._table} in {self._path}: {error};"
                f" rows: {', '.join(f'{f.name} {f.type}' for f in schema)};"
                f" table: {', '.join(f'{name} {kind}' for name, kind, *_ in there)}",
                hint="change the transform, or name another table",
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        if self._connection is None:
            raise ConfigError(f"{self!r} is used before open()")
        with self._translated():
            self._connection.begin()
            try:
                yield self._connection
            except BaseException:
                self._connection.rollback()
                raise
            self._connection.commit()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        duckdb = require("duckdb", extra="duckdb")
        try:
            yield
        except duckdb.Error as error:
            raise RetriableError(f"{self._path}: {error}", hint=f"df -h {self._path.parent}") from error

    def _refused(self, reason: str) -> Exception:
        if "lock" in reason.lower():
            return OffsetConflict(
                f"another process has {self._path} open: {reason}",
                hint="stop the other run, or close the program that reads the file",
            )
        if "ermission" in reason or "ead-only" in reason:
            return ConfigError(f"{self._path} cannot be written: {reason}", hint="choose another path")
        if "not a valid DuckDB" in reason:
            return ConfigError(f"{self._path}: {reason}", hint="move the file away, or name another")
        return RetriableError(f"{self._path}: {reason}", hint=f"df -h {self._path.parent}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
