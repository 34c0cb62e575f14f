"""Dead letters in a table of the SQL database that has the rows."""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.sql import own_tables
from headrace.connectors.sql.identifiers import qualified, quoted, quoted_list
from headrace.connectors.sql.own_tables import OwnTable
from headrace.core.dead_letters import TEXT_FIELDS, DeadLetter, RecordId
from headrace.core.sink import DeadLetterTableSink, TransactionalSink
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from headrace.connectors.sql.offset_store import SqlOffsetStore
    from headrace.connectors.sql.offset_tables import Connection
    from headrace.connectors.sql.upsert import WriteMode

_RECORD_ID = ("topic", "partition", "offset")
_RECORD = (*_RECORD_ID, "timestamp", "key", "value", "headers")
_ADDED = "TEXT DEFAULT ''"
"""Definition of a column that a later format adds. Not NOT NULL: DuckDB cannot add a column with a constraint."""


class DeadLetterTables(DeadLetterTableSink, TransactionalSink):
    """Stores dead letters in a table, in the transactions of the sink's offset store."""

    _write_mode: WriteMode
    _dead_letter_types: ClassVar[dict[str, str]] = {"bytes": "BLOB", "time": "TEXT"}

    @property
    @abstractmethod
    def offsets(self) -> SqlOffsetStore: ...

    @abstractmethod
    def _has_table(self, connection: Connection, table: str) -> bool:
        """Whether a table of that name exists."""

    def is_row_table(self, table: str) -> bool:
        return self._full_name(table) == self._full_name(self._write_mode.table)

    def _full_name(self, table: str) -> str:
        """The name with its schema, which is equal for all spellings of one table."""
        return (table if "." in table else f"main.{table}").lower()

    def read_dead_letters(self, table: str) -> Sequence[DeadLetter]:
        with self.offsets.reading() as connection:
            exists = self._exists(connection, table)
            (version,) = own_tables.stored_formats(connection, [self._own_table(table)], exists)
            if not version:
                return []
            texts = TEXT_FIELDS[: version + 1]
            rows = connection.execute(
                f"SELECT {quoted_list([*_RECORD, *texts])} FROM {_quoted_name(table)} WHERE pipeline = ?"
                f" ORDER BY {quoted_list(_RECORD_ID)}",
                [self.offsets.pipeline],
            ).fetchall()
        return [_dead_letter(row, texts) for row in rows]

    def drop_dead_letters(self, table: str, origins: Sequence[RecordId]) -> None:
        condition = 'pipeline = ? AND topic = ? AND "partition" = ? AND "offset" = ?'
        statement = f"DELETE FROM {_quoted_name(table)} WHERE {condition}"
        with self.offsets.transaction() as connection:
            for origin in origins:
                connection.execute(statement, [self.offsets.pipeline, *origin])

    def store_dead_letters(self, connection: Connection, table: str, letters: Sequence[DeadLetter]) -> None:
        """Store dead letters in the transaction of the rows. A record that fails again replaces its dead letter."""
        exists = self._exists(connection, table)
        own_tables.ensure(connection, [self._own_table(table)], exists, lambda: self._creating(connection))
        columns, key = ["pipeline", *_RECORD, *TEXT_FIELDS], ["pipeline", *_RECORD_ID]
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in key)
        statement = (
            f"INSERT INTO {_quoted_name(table)} ({quoted_list(columns)}) VALUES ({', '.join('?' * len(columns))})"
            f" ON CONFLICT ({quoted_list(key)}) DO UPDATE SET {changes}"
        )
        for letter in letters:
            timestamp = letter.timestamp.isoformat() if letter.timestamp else None
            texts = [getattr(letter, name) for name in TEXT_FIELDS]
            record = [*letter.origin, timestamp, letter.key, letter.value, _headers(letter)]
            connection.execute(statement, [self.offsets.pipeline, *record, *texts])

    def _creating(self, connection: Connection) -> AbstractContextManager[None]:
        """Within the block and until the transaction ends, no other run can create or alter a dead-letter table."""
        return nullcontext()

    def _exists(self, connection: Connection, table: str) -> Callable[[str], bool]:
        """A function that returns whether a table exists. `own_tables` passes the dead-letter table's full name."""
        own = self._full_name(table)
        return lambda name: self._has_table(connection, table if name == own else name)

    def _own_table(self, table: str) -> OwnTable:
        raw, time = self._dead_letter_types["bytes"], self._dead_letter_types["time"]
        added = [f"{quoted(name)} {_ADDED}" for name in TEXT_FIELDS[2:]]
        create = (
            f"CREATE TABLE IF NOT EXISTS {_quoted_name(table)} (pipeline TEXT NOT NULL, topic TEXT NOT NULL,"
            f' "partition" INTEGER NOT NULL, "offset" BIGINT NOT NULL, "timestamp" {time}, "key" {raw}, value {raw},'
            " headers TEXT NOT NULL, error TEXT NOT NULL, place TEXT NOT NULL,"
            f' {"".join(f"{column}, " for column in added)}PRIMARY KEY (pipeline, topic, "partition", "offset"))'
        )
        upgrades = tuple(f"ALTER TABLE {_quoted_name(table)} ADD COLUMN {column}" for column in added)
        return OwnTable(self._full_name(table), create, upgrades)


def _quoted_name(table: str) -> str:
    if "?" in table or "%" in table:
        raise ConfigError(f"expected a dead-letter table without ? and %, got {table!r}", hint='"clicks_dead"')
    return qualified(table)


def _headers(letter: DeadLetter) -> str:
    return json.dumps([[n, None if v is None else base64.b64encode(v).decode()] for n, v in letter.headers])


def _dead_letter(row: Sequence[Any], texts: Sequence[str]) -> DeadLetter:
    topic, partition, offset, timestamp, key, value, headers, *values = row
    return DeadLetter(
        RecordId(topic, partition, offset),
        datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        tuple((name, None if text is None else base64.b64decode(text)) for name, text in json.loads(headers)),
        **dict(zip(texts, values, strict=True)),
    )
