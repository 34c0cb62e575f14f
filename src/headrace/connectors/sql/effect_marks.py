"""Effect marks in a table, for SQL stores."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.sql.own_tables import OwnTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from headrace.connectors.sql.offset_tables import Connection

TABLE = OwnTable(
    "headrace_marks",
    """CREATE TABLE IF NOT EXISTS headrace_marks (
    pipeline TEXT NOT NULL, message TEXT NOT NULL, marked BIGINT NOT NULL, PRIMARY KEY (pipeline, message))""",
)


@dataclass(frozen=True, slots=True)
class SqlEffectLogClient:
    """Marks in the table headrace_marks. `connection` commits each statement."""

    connection: Connection
    pipeline: str
    translating_errors: Callable[[], AbstractContextManager[None]]
    close_connection: Callable[[], object]

    def prepare(self, keep: float) -> None:
        with self.translating_errors():
            expired = [self.pipeline, int(time.time() - keep)]
            self.connection.execute("DELETE FROM headrace_marks WHERE pipeline = ? AND marked < ?", expired)

    def find_marked(self, messages: Sequence[str]) -> set[str]:
        if not messages:
            return set()
        placeholders = ", ".join("?" * len(messages))
        query = f"SELECT message FROM headrace_marks WHERE pipeline = ? AND message IN ({placeholders})"
        with self.translating_errors():
            return {message for (message,) in self.connection.execute(query, [self.pipeline, *messages]).fetchall()}

    def mark(self, message: str) -> bool:
        statement = "INSERT INTO headrace_marks VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1"
        with self.translating_errors():
            return bool(self.connection.execute(statement, [self.pipeline, message, int(time.time())]).fetchall())

    def unmark(self, message: str) -> None:
        statement = "DELETE FROM headrace_marks WHERE pipeline = ? AND message = ?"
        with self.translating_errors():
            self.connection.execute(statement, [self.pipeline, message])

    def close(self) -> None:
        self.close_connection()
