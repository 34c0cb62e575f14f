"""Offsets in a SQLite file: the default store, without anything to install."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

from headrace.connectors.sql import offset_tables, own_tables
from headrace.connectors.sql.offset_store import EmbeddedOffsetStore
from headrace.core.effect_marks import EffectStore
from headrace.errors import ConfigError, RetriableError
from headrace.support.paths import private_directory, private_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.connectors.sql.own_tables import OwnTable
    from headrace.core.effect_marks import EffectLog
    from headrace.core.offset_store import Heartbeats

_LOCK_SECONDS = 10.0


class SQLite(EmbeddedOffsetStore, EffectStore):
    """One file on a local disk for any number of pipelines. When a call returns, its changes are on disk."""

    system = "SQLite"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)

    def open(self, pipeline: str) -> Self:
        self.pipeline = pipeline
        try:
            private_directory(self.path.parent)
            private_file(self.path)
        except OSError as error:
            raise ConfigError(
                f"offsets cannot be kept in {self.path}: {error.strerror}",
                hint="choose a directory that this user may write, or set HEADRACE_STATE",
            ) from error
        with self.translating_errors():
            # Used by one thread at a time, but not always by the same one: foreachBatch has a thread per query.
            self._connection = sqlite3.connect(
                self.path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            ensure_tables(self._connection, *offset_tables.TABLES)
        return self

    def _connect_for_reading(self) -> sqlite3.Connection:
        # Not mode=ro, which leaves its -wal and -shm files behind.
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)

    def _has_relation(self, name: str) -> bool:
        return _has_relation(self.connection, name)

    def heartbeat_handle(self) -> Heartbeats:
        return SQLite(self.path)

    def marks(self, pipeline: str, keep: float) -> EffectLog:
        from headrace.connectors.sqlite.effect_marks import SQLiteEffectLog

        return SQLiteEffectLog(str(self.path.absolute()), pipeline, keep)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction that no other writer of the file can enter."""
        return self._transaction("BEGIN IMMEDIATE")

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A read-only transaction."""
        return self._transaction("BEGIN")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self.translating_errors(), _within(self.connection, begin) as connection:
            yield connection

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname in {"SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_READONLY_DIRECTORY"}:
                raise ConfigError(
                    f"offsets cannot be kept in {self.path}: {error}",
                    hint="choose a directory that this user may write, or set HEADRACE_STATE",
                ) from error
            raise RetriableError(f"{self.path}: {error}", hint=f"df -h {self.path.parent}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{self.path} is not a usable SQLite file: {error}", hint="move it away, or name another file"
            ) from error


def ensure_tables(connection: sqlite3.Connection, *tables: OwnTable) -> None:
    """Create and upgrade Headrace's own tables."""
    exists = partial(_has_relation, connection)
    own_tables.ensure(connection, tables, exists, partial(_within, connection, "BEGIN IMMEDIATE"))


@contextmanager
def _within(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    connection.execute(begin)
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _has_relation(connection: sqlite3.Connection, name: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [name]).fetchall())
