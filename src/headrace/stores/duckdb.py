"""Offsets in a DuckDB file."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.extras import require
from headrace.stores import sql
from headrace.stores.base import OffsetStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.stores.state import Change, State


class DuckDB(OffsetStore):
    """One file, on a local disk. DuckDB lets one process at a time into a file that is written."""

    def __init__(self, path: str | Path, *, mirror: bool | str = False) -> None:
        self._path = Path(path)
        self._pipeline = ""
        self._connection: Any = None
        self.mirror = mirror

    def __repr__(self) -> str:
        return f"stores.DuckDB({str(self._path)!r})"

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

    def read(self) -> tuple[State, Any]:
        with self.transaction() as connection:
            return sql.read(connection, self._pipeline), None

    def swap(self, version: Any, old: State, new: State, change: Change | None = None) -> bool:
        duckdb = require("duckdb", extra="duckdb")
        try:
            with self.transaction() as connection:
                return sql.swap(connection, self._pipeline, old, new, change)
        except RetriableError as error:
            if isinstance(error.__cause__, duckdb.TransactionException | duckdb.ConstraintException):
                return False  # another connection of this process was first
            raise

    def history(self) -> Sequence[Change]:
        with self.transaction() as connection:
            return sql.history(connection, self._pipeline)

    def _connected(self) -> Any:
        if self._connection is None:
            raise ConfigError(f"{self!r} is used before open()")
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self._connected()
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
        if "s a directory" in reason:
            return ConfigError(f"{self._path} is a directory; a file is meant", hint="choose another path")
        if "ermission" in reason or "ead-only" in reason:
            return ConfigError(f"{self._path} cannot be written: {reason}", hint="choose another path")
        if "not a valid DuckDB" in reason:
            return ConfigError(f"{self._path}: {reason}", hint="move the file away, or name another")
        return RetriableError(f"{self._path}: {reason}", hint=f"df -h {self._path.parent}")
