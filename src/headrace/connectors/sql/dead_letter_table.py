"""Dead letters in a table of a SQL database, beside the rows."""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.sql.identifiers import qualified
from headrace.core.dead_letters import DeadLetter, RecordId
from headrace.core.sink import DeadLetterTableSink
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from headrace.connectors.sql.offset_tables import Connection
    from headrace.connectors.sql.upsert import WriteMode


class LetterTables(DeadLetterTableSink):
    """Dead letters in a table beside the rows: the rest of a sink that is a store in SQL as well."""

    _pipeline: str
    _shape: WriteMode
    _letters_types: ClassVar[dict[str, str]] = {"bytes": "BLOB", "time": "TEXT"}

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Connection]:
        """As that of the store."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction that changes nothing."""

    @abstractmethod
    def _has_table(self, connection: Connection, table: str) -> bool:
        """Whether there is a table of that name."""

    def is_row_table(self, table: str) -> bool:
        return self._whole_name(table) == self._whole_name(self._shape.table)

    def _whole_name(self, table: str) -> str:
        """With its schema, and the same for all spellings of one table."""
        return (table if "." in table else f"main.{table}").lower()

    def read_dead_letters(self, table: str) -> Sequence[DeadLetter]:
        with self.reading() as connection:
            if not self._has_table(connection, table):
                return []
            found = connection.execute(
                'SELECT topic, "partition", "offset", "timestamp", "key", value, headers, error, place'
                f' FROM {_name(table)} WHERE pipeline = ? ORDER BY topic, "partition", "offset"',
                [self._pipeline],
            ).fetchall()
        return [_letter(row) for row in found]

    def drop_dead_letters(self, table: str, origins: Sequence[RecordId]) -> None:
        with self.transaction() as connection:
            for origin in origins:
                connection.execute(
                    f'DELETE FROM {_name(table)} WHERE pipeline = ? AND topic = ? AND "partition" = ? AND "offset" = ?',
                    [self._pipeline, *origin],
                )

    def _store_letters(self, connection: Connection, table: str, letters: Sequence[DeadLetter]) -> None:
        """Inside the transaction of the rows. A record that fails once more replaces itself."""
        self._create_letters(connection, table)
        for letter in letters:
            at = letter.timestamp.isoformat() if letter.timestamp else None
            values = [letter.key, letter.value, _headers(letter), letter.error, letter.place]
            connection.execute(
                f'INSERT INTO {_name(table)} (pipeline, topic, "partition", "offset", "timestamp", "key", value,'
                " headers, error, place) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                ' ON CONFLICT (pipeline, topic, "partition", "offset") DO UPDATE SET'
                ' "timestamp" = excluded."timestamp", "key" = excluded."key", value = excluded.value,'
                " headers = excluded.headers, error = excluded.error, place = excluded.place",
                [self._pipeline, *letter.origin, at, *values],
            )

    def _create_letters(self, connection: Connection, table: str) -> None:
        raw, time = self._letters_types["bytes"], self._letters_types["time"]
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {_name(table)} (pipeline TEXT NOT NULL, topic TEXT NOT NULL,"
            f' "partition" INTEGER NOT NULL, "offset" BIGINT NOT NULL, "timestamp" {time}, "key" {raw}, value {raw},'
            " headers TEXT NOT NULL, error TEXT NOT NULL, place TEXT NOT NULL,"
            ' PRIMARY KEY (pipeline, topic, "partition", "offset"))'
        )


def _name(table: str) -> str:
    if "?" in table or "%" in table:
        raise ConfigError(f"{table!r} cannot be a table of dead letters: neither ? nor % can", hint='"clicks_dead"')
    return qualified(table)


def _headers(letter: DeadLetter) -> str:
    return json.dumps([[n, None if v is None else base64.b64encode(v).decode()] for n, v in letter.headers])


def _letter(row: Sequence[Any]) -> DeadLetter:
    topic, partition, offset, at, key, value, headers, error, place = row
    return DeadLetter(
        RecordId(topic, partition, offset),
        datetime.fromisoformat(at) if isinstance(at, str) else at,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        tuple((name, None if text is None else base64.b64decode(text)) for name, text in json.loads(headers)),
        error,
        place,
    )
