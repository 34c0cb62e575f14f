"""Effect marks in a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.sql.effect_marks import TABLE, SqlEffectLogClient
from headrace.connectors.sqlite.offset_store import ensure_tables
from headrace.errors import ConfigError, RetriableError
from headrace.support.paths import private_directory, private_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SQLiteEffectLog:
    path: str
    pipeline: str
    keep: float
    is_local: bool = True

    def prepare(self) -> None:
        with self._translating_errors():
            private_directory(Path(self.path).parent)
            private_file(Path(self.path))
        with closing(self.connect()) as log_client:
            with self._translating_errors():
                connection: Any = log_client.connection
                connection.execute("PRAGMA journal_mode = WAL")
                ensure_tables(connection, TABLE)
            log_client.prepare(self.keep)

    def connect(self) -> SqlEffectLogClient:
        with self._translating_errors():
            connection = sqlite3.connect(self.path, timeout=_LOCK_SECONDS, isolation_level=None)
            connection.execute("PRAGMA synchronous = FULL")
        return SqlEffectLogClient(connection, self.pipeline, self._translating_errors, connection.close)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RetriableError(
                f"marks in {self.path}: {error}", hint="is the directory there, and writable?"
            ) from error
        except (sqlite3.DatabaseError, OSError) as error:
            raise ConfigError(f"marks in {self.path}: {error}", hint="name another file") from error
