"""Offsets in three PostgreSQL tables."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.postgres.client import (
    BEGIN,
    Connection,
    connect,
    ensure_tables,
    has_tables,
    translate_error,
)
from headrace.connectors.sql import offset_tables
from headrace.connectors.sql.offset_store import SqlOffsetStore
from headrace.core.effect_marks import EffectStore
from headrace.errors import ConfigError, RetriableError
from headrace.support.optional_imports import require
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from headrace.core.effect_marks import EffectLog
    from headrace.core.offset_store import Heartbeats

_BEGIN_READ_ONLY = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NEW_PIPELINE = """INSERT INTO headrace_pipelines (pipeline, last_batch, topic_ids) VALUES (?, 0, '{}')
    ON CONFLICT DO NOTHING"""
_LOCK = "SELECT 1 FROM headrace_pipelines WHERE pipeline = ? FOR UPDATE"


class Postgres(SqlOffsetStore, EffectStore):
    """Any number of pipelines in one database. The tables are created if they do not exist.

    `dsn` is a URL or a connection string of libpq. libpq takes missing parts from PGPASSWORD, ~/.pgpass and so on.
    """

    driver = ("psycopg", "postgres")

    def __init__(self, dsn: str) -> None:
        if not isinstance(dsn, str) or not dsn.strip():
            raise ConfigError(
                "expected a DSN of PostgreSQL, got none", hint='stores.Postgres("postgresql://user@localhost/app")'
            )
        self.dsn = dsn
        self._commit_uncertain = False

    @property
    def identity(self) -> str:
        return f"stores.Postgres({masked(self.dsn)!r})"

    def open(self, pipeline: str) -> Self:
        self.pipeline = pipeline
        with self.translating_errors():
            self._connection = connect(self.dsn)
            ensure_tables(self._connection, *offset_tables.TABLES)
        return self

    def _connect_for_reading(self) -> Any:
        return connect(self.dsn)

    def _has_tables(self) -> bool:
        return has_tables(self.connection, *offset_tables.TABLES)

    def heartbeat_handle(self) -> Heartbeats:
        return Postgres(self.dsn)

    def durability_warnings(self, pipeline: str) -> list[str]:
        with self.translating_errors(), connect(self.dsn) as connection:
            ((fsync,),) = connection.execute("SELECT current_setting('fsync')").fetchall()
        warning = f"{self!r} runs with fsync = off: a crash of its machine may lose or corrupt the offsets"
        return [warning] if fsync == "off" else []

    def marks(self, pipeline: str, keep: float) -> EffectLog:
        from headrace.connectors.postgres.effect_marks import PostgresEffectLog

        return PostgresEffectLog(self.dsn, pipeline, keep)

    def reading(self) -> AbstractContextManager[Connection]:
        # A commit whose reply was lost may still be running. A transaction with the lock waits for its end.
        return self.transaction() if self._commit_uncertain else self._within(_BEGIN_READ_ONLY)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that no other writer of this pipeline can enter: the pipeline's row is locked."""
        try:
            with self._within(BEGIN) as connection:
                connection.execute(_NEW_PIPELINE, [self.pipeline])
                connection.execute(_LOCK, [self.pipeline])
                yield connection
        except RetriableError:
            self._commit_uncertain = self._commit_uncertain or self._connection.closed
            raise
        self._commit_uncertain = False

    @contextmanager
    def _within(self, begin: str) -> Iterator[Connection]:
        with self.translating_errors():
            self._begin(begin)
            try:
                yield Connection(self.connection)
            except BaseException:
                with suppress(require("psycopg", extra="postgres").Error):  # a lost connection has rolled back
                    self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def _begin(self, begin: str) -> None:
        psycopg = require("psycopg", extra="postgres")
        try:
            self.connection.execute(begin)
        except psycopg.OperationalError:
            if not self.connection.closed:
                raise
            # The server restarted since the last call. This call has not executed anything yet.
            self._connection = connect(self.dsn)
            self._connection.execute(begin)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect within the block, without creating tables as `open` does."""
        with self.translating_errors():
            self._connection = connect(self.dsn)
            try:
                yield
            finally:
                self.close()

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        psycopg = require("psycopg", extra="postgres")
        try:
            yield
        except psycopg.Error as error:
            raise translate_error(error, repr(self)) from error
