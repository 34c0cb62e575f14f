"""Headrace's own tables in a SQL database: created, upgraded from an older format, refused in a newer one.

The table `headrace_formats` has a row for each table. A table without such a row has format 1, the first one: it was
created before formats were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.format_version import refuse_newer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from headrace.connectors.sql.offset_tables import Connection

_FORMATS = "headrace_formats"
_CREATE = f"CREATE TABLE IF NOT EXISTS {_FORMATS} (table_name TEXT PRIMARY KEY, format INTEGER NOT NULL)"
_RECORD = f"""INSERT INTO {_FORMATS} (table_name, format) VALUES (?, ?)
    ON CONFLICT (table_name) DO UPDATE SET format = excluded.format"""


@dataclass(frozen=True, slots=True)
class OwnTable:
    """A table in its newest format. `upgrades[0]` turns format 1 into format 2, and so on."""

    name: str
    create: str
    upgrades: tuple[str, ...] = ()

    @property
    def format(self) -> int:
        return len(self.upgrades) + 1


def ensure(
    connection: Connection,
    tables: Sequence[OwnTable],
    exists: Callable[[str], bool],
    transaction: Callable[[], AbstractContextManager[object]],
) -> None:
    """Create and upgrade tables where necessary, inside `transaction`, which one process can enter at a time.

    Only reads if there is nothing to do, so that a user without the right to create tables can use existing ones.
    ConfigError if a table has a newer format.
    """
    if not list(_statements(connection, tables, exists)):
        return
    with transaction():
        for statement, parameters in _statements(connection, tables, exists):
            connection.execute(statement, parameters)


def stored_formats(connection: Connection, tables: Sequence[OwnTable], exists: Callable[[str], bool]) -> list[int]:
    """The stored format of each table, 0 if it does not exist; ConfigError if a format is newer. Only reads."""
    rows = connection.execute(f"SELECT table_name, format FROM {_FORMATS}").fetchall() if exists(_FORMATS) else []
    recorded = dict(rows)
    formats = [recorded.get(table.name, 1) if exists(table.name) else 0 for table in tables]
    for table, version in zip(tables, formats, strict=True):
        refuse_newer(version, table.format, f"table {table.name}")
    return formats


def _statements(
    connection: Connection, tables: Sequence[OwnTable], exists: Callable[[str], bool]
) -> Iterator[tuple[str, Sequence[object]]]:
    for table, version in zip(tables, stored_formats(connection, tables, exists), strict=True):
        if version < table.format:
            for statement in table.upgrades[version - 1 :] if version else (table.create,):
                yield statement, ()
            yield _CREATE, ()
            yield _RECORD, (table.name, table.format)
