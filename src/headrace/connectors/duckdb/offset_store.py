"""Offsets in a DuckDB file."""

from __future__ import annotations

import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.sql import offset_tables, own_tables
from headrace.connectors.sql.offset_store import EmbeddedOffsetStore
from headrace.errors import ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.support.durable import sync
from headrace.support.optional_imports import require
from headrace.support.paths import private_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.core.state import AuditEntry, State


class DuckDB(EmbeddedOffsetStore):
    """One file on a local disk. While a process writes the file, DuckDB lets no other process open it."""

    driver = ("duckdb", "duckdb")
    system = "DuckDB"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)

    def open(self, pipeline: str) -> Self:
        duckdb = require("duckdb", extra="duckdb")
        self.pipeline = pipeline
        try:
            private_directory(self.path.parent)
        except OSError as error:
            raise ConfigError(f"{self.path.parent}: {error.strerror}", hint="choose another path") from error
        try:
            created = not self.path.exists()
            self._connection = duckdb.connect(str(self.path))
            if created:
                self.path.chmod(0o600)
            with suppress(OSError):  # otherwise DuckDB creates it with the umask when rows do not fit into memory
                self._spill_directory.mkdir(mode=0o700)
        except duckdb.IOException as error:
            raise self.open_error(error) from error
        with self.translating_errors():
            own_tables.ensure(self._connection, offset_tables.TABLES, self._has_relation, self.transaction)
        self._restrict_log()
        return self

    def _connect_for_reading(self) -> Any:
        duckdb = require("duckdb", extra="duckdb")
        try:
            return duckdb.connect(str(self.path), read_only=True)
        except duckdb.IOException as error:
            raise self.open_error(error) from error

    def close(self) -> None:
        if self._connection is not None:
            super().close()
            with suppress(OSError):
                self._spill_directory.rmdir()

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        duckdb = require("duckdb", extra="duckdb")
        try:
            return super().swap(version, old, new, change)
        except RetriableError as error:
            if isinstance(error.__cause__, duckdb.TransactionException | duckdb.ConstraintException):
                return False  # another connection of this process committed first
            raise

    @property
    def _spill_directory(self) -> Path:
        """The directory for data that does not fit into memory."""
        return self.path.with_name(f"{self.path.name}.tmp")

    def _has_relation(self, name: str) -> bool:
        return bool(self.connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [name]).fetchall())

    def reading(self) -> AbstractContextManager[Any]:
        """A read-only transaction."""
        return self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        connection = self.connection
        with self.translating_errors():
            connection.begin()
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
            self._restrict_log()
            sync(self.path.parent)  # DuckDB syncs its log, but not the directory entry of a new log

    def _restrict_log(self) -> None:
        """Give the write-ahead log the mode of the database file.

        DuckDB creates it after each checkpoint, with the umask, which all threads share.
        """
        log = self.path.with_name(f"{self.path.name}.wal")
        with suppress(OSError):
            mode, allowed = stat.S_IMODE(log.stat().st_mode), stat.S_IMODE(self.path.stat().st_mode)
            if mode & ~allowed:
                log.chmod(mode & allowed)

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        duckdb = require("duckdb", extra="duckdb")
        try:
            yield
        except duckdb.Error as error:
            raise RetriableError(f"{self.path}: {error}", hint=f"df -h {self.path.parent}") from error

    def open_error(self, error: Exception) -> HeadraceError:
        reason = str(error)
        if "lock" in reason.lower():
            return OffsetConflict(
                f"another process has {self.path} open: {reason}",
                hint="stop the other run, or close the program that reads the file",
            )
        if "s a directory" in reason:
            return ConfigError(f"expected a file, got a directory: {self.path}", hint="choose another path")
        if "ermission" in reason or "ead-only" in reason:
            return ConfigError(f"{self.path} cannot be written: {reason}", hint="choose another path")
        if "not a valid DuckDB" in reason or "ould not read enough bytes" in reason:
            return ConfigError(f"{self.path}: {reason}", hint="move the file away, or name another")
        return RetriableError(f"{self.path}: {reason}", hint=f"df -h {self.path.parent}")
