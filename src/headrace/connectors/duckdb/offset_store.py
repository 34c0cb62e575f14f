"""Offsets in a DuckDB file."""

from __future__ import annotations

import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.sql import offset_tables, own_tables
from headrace.core.offset_store import OffsetStore
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.support.durable import sync
from headrace.support.optional_imports import require
from headrace.support.paths import private_directory
from headrace.support.pipeline_folder import located

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.core.state import AuditEntry, State


class DuckDB(OffsetStore):
    """One file, on a local disk. DuckDB lets one process at a time into a file that is written."""

    driver = ("duckdb", "duckdb")

    def __init__(self, path: str | Path) -> None:
        self._given, self._path = str(path), located(path)
        self._pipeline = ""
        self._connection: Any = None

    @property
    def identity(self) -> str:
        return f"stores.DuckDB({self._given!r})"

    @property
    def local_path(self) -> Path | None:
        return self._path.absolute()

    def open(self, pipeline: str) -> Self:
        duckdb = require("duckdb", extra="duckdb")
        self._pipeline = pipeline
        try:
            private_directory(self._path.parent)
        except OSError as error:
            raise ConfigError(f"{self._path.parent}: {error.strerror}", hint="choose another path") from error
        try:
            created = not self._path.exists()
            self._connection = duckdb.connect(str(self._path))
            if created:
                self._path.chmod(0o600)
            with suppress(OSError):  # DuckDB would make it as the umask says, when rows do not fit into memory
                self._spilled.mkdir(mode=0o700)
        except duckdb.IOException as error:
            raise self._refused(str(error)) from error
        with self._translated():
            own_tables.ensure(self._connection, offset_tables.TABLES, self._has_relation, self.transaction)
        self._close_log()
        return self

    def open_for_reading(self, pipeline: str) -> str | None:
        duckdb = require("duckdb", extra="duckdb")
        if not self._path.exists():
            return f"there is no file {self._path}"
        self._pipeline = pipeline
        try:
            self._connection = duckdb.connect(str(self._path), read_only=True)
        except duckdb.IOException as error:
            raise self._refused(str(error)) from error
        with self._translated():
            own_tables.refuse_newer_tables(self._connection, offset_tables.TABLES, self._has_relation)
            found = self._has_relation("headrace_offsets")
        if found:
            return None
        self.close()
        return f"{self._path} holds no offsets"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            with suppress(OSError):
                self._spilled.rmdir()

    def read(self) -> tuple[State, Any]:
        with self.transaction() as connection:
            return offset_tables.read(connection, self._pipeline), None

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        duckdb = require("duckdb", extra="duckdb")
        try:
            with self.transaction() as connection:
                return offset_tables.swap(connection, self._pipeline, old, new, change)
        except RetriableError as error:
            if isinstance(error.__cause__, duckdb.TransactionException | duckdb.ConstraintException):
                return False  # another connection of this process was first
            raise

    def history(self) -> Sequence[AuditEntry]:
        with self.transaction() as connection:
            return offset_tables.history(connection, self._pipeline)

    @property
    def _spilled(self) -> Path:
        """Where DuckDB puts what does not fit into memory."""
        return self._path.with_name(f"{self._path.name}.tmp")

    def _has_relation(self, name: str) -> bool:
        return bool(self._connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [name]).fetchall())

    def _connected(self) -> Any:
        if self._connection is None:
            raise ConfigError(f"{self!r} is used before open()")
        return self._connection

    def reading(self) -> AbstractContextManager[Any]:
        """A transaction that changes nothing."""
        return self.transaction()

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
            self._close_log()
            sync(self._path.parent)  # DuckDB syncs its log, but not the name of one that it has just created

    def _close_log(self) -> None:
        """DuckDB makes its write-ahead log anew after each checkpoint, as the umask says: it gets the mode of the file.

        Afterwards, for a umask is that of all threads, and a log made ahead would stay where none is needed.
        """
        log = self._path.with_name(f"{self._path.name}.wal")
        with suppress(OSError):
            found, allowed = stat.S_IMODE(log.stat().st_mode), stat.S_IMODE(self._path.stat().st_mode)
            if found & ~allowed:
                log.chmod(found & allowed)

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
        if "not a valid DuckDB" in reason or "ould not read enough bytes" in reason:
            return ConfigError(f"{self._path}: {reason}", hint="move the file away, or name another")
        return RetriableError(f"{self._path}: {reason}", hint=f"df -h {self._path.parent}")
