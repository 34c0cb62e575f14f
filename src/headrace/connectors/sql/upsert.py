"""How rows are written to a table: appended, or upserted with the source offset as a guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from headrace.connectors.sql.identifiers import qualified, quoted, quoted_list
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.spark.origin_columns import origin_column_exprs
from headrace.spark.sql import column_of
from headrace.support.validation import check_choice, check_table_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from headrace.types import Batch

_FLAGS = frozenset({"boolean", "tinyint", "smallint", "int", "bigint"})
Mode = Literal["append", "upsert", "delete-aware"]

ORIGIN, OFFSET, DELETED = "headrace_origin", "headrace_offset", "headrace_deleted"
"""Columns of an upserted table: the source partition of a row, with the topic's id, and the offset. Only staged rows
have the third column."""


def row_exists_error(sink: object, reason: object) -> ConfigError:
    return ConfigError(
        f"{sink}: the table already has a row with this key: {reason}",
        hint='mode="upsert" with key=… replaces the existing row',
    )


@dataclass(frozen=True, slots=True)
class WriteMode:
    """How rows are written to a table: appended, or as a replacement of the row with the same key."""

    table: str
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    deleted: str = "deleted"

    @classmethod
    def of(cls, table: str, key: str | Sequence[str] | None, mode: str, deleted: str) -> WriteMode:
        """Check and create a write mode. Raises ConfigError."""
        check_table_name(table)
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        check_choice("mode", mode, get_args(Mode))
        if mode == "append" and keys:
            raise ConfigError(f'expected no key with mode="append", got key={key!r}', hint='mode="upsert"')
        if mode != "append" and (not keys or not all(isinstance(name, str) and name for name in keys)):
            raise ConfigError(f"expected the columns of the key with mode={mode!r}, got key={key!r}", hint='key="user"')
        if mode != "delete-aware" and deleted != "deleted":
            raise ConfigError(f'deleted= needs mode="delete-aware", got mode={mode!r}', hint='mode="delete-aware"')
        return cls(table, mode, keys, deleted)  # type: ignore[arg-type]

    @property
    def keyed(self) -> bool:
        return self.mode != "append"

    @property
    def name(self) -> str:
        return qualified(self.table)

    @property
    def guard_columns(self) -> tuple[str, ...]:
        """Columns of the table in addition to those of the rows."""
        return (ORIGIN, OFFSET) if self.keyed else ()

    def columns(self, names: Sequence[str]) -> list[str]:
        """The columns of the rows that are stored. ConfigError if a column of the key is missing."""
        stored = [
            name for name in names if name != METADATA and not (self.mode == "delete-aware" and name == self.deleted)
        ]
        if reserved := [name for name in stored if name.lower().startswith("headrace_")]:
            raise ConfigError(
                f"the column name {reserved[0]} is reserved by Headrace", hint="rename it in the transform"
            )
        if missing := [name for name in self.key if name not in stored]:
            raise ConfigError(f"the rows have no column {missing[0]}, which is in the key", hint=f"rows: {stored}")
        if self.mode == "delete-aware" and self.deleted not in names and METADATA not in names:
            raise ConfigError(
                f"no column {self.deleted} says which rows delete, and the transform dropped {METADATA}",
                hint=f'keep {METADATA}, or name the boolean column: deleted="…"',
            )
        return stored

    def staged(self, names: Sequence[str]) -> list[str]:
        """The columns of the source of `merge_statements`."""
        return [*self.columns(names), *((ORIGIN, OFFSET, DELETED) if self.keyed else ())]

    def merge_statements(self, source: str, columns: Sequence[str]) -> list[str]:
        """The SQL that merges the rows of `source`, a table or a query in parentheses, into the table.

        Of several rows with one key, the newest is written. A row with a lower offset of the same partition than the
        existing row changes nothing: neither a replay nor an overtaken run restores an older value.
        """
        if not self.keyed:
            names = quoted_list(columns)
            return [f"INSERT INTO {self.name} ({names}) SELECT {names} FROM {source} AS s"]
        key = quoted_list(self.key)
        ranked = f"SELECT s.*, row_number() OVER (PARTITION BY {key} ORDER BY {OFFSET} DESC) AS headrace_rank"
        newest = f"(SELECT * FROM ({ranked} FROM {source} AS s) AS r WHERE headrace_rank = 1)"
        same = " AND ".join(f"t.{quoted(name)} = n.{quoted(name)}" for name in self.key)
        deletions = f"SELECT 1 FROM {newest} AS n WHERE n.{DELETED} AND {same} AND {_newer('n', 't')}"
        stored = [*columns, *self.guard_columns]
        # Ordered, so that two transactions that write several common keys do not deadlock.
        upserts = f"SELECT {quoted_list(stored)} FROM {newest} AS n WHERE NOT n.{DELETED} ORDER BY {key}"
        changes = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in stored if n not in self.key)
        update = f"ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE {_newer('excluded', 't')}"
        return [
            f"DELETE FROM {self.name} AS t WHERE EXISTS ({deletions})",
            f"INSERT INTO {self.name} AS t ({quoted_list(stored)}) {upserts} {update}",
        ]

    def frame(self, batch: Batch, rows: DataFrame, *, with_origin: bool = False) -> DataFrame:
        """The `staged` columns of `rows`; if `with_origin`, with ORIGIN_COLUMNS."""
        from pyspark.sql import functions as sql

        columns = self.columns(rows.columns)
        origin_columns = origin_column_exprs(rows) if with_origin else []
        if not self.keyed:
            return rows.select(*[column_of(name) for name in columns], *origin_columns)
        kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
        if not kinds.get(METADATA, "struct").startswith("struct"):
            raise ConfigError(
                f"expected {METADATA} as a struct, got {kinds[METADATA]}",
                hint="the transform may drop it, but not change it",
            )
        if self.mode == "delete-aware" and kinds.get(self.deleted, "boolean") not in _FLAGS:
            raise ConfigError(
                f"{self.deleted}, which says what is deleted, is {kinds[self.deleted]}",
                hint=f"make it a BOOLEAN in the transform: {self.deleted} = '…' AS {self.deleted}",
            )
        origin = sql.lit(None).cast("string")
        offset = sql.lit(None).cast("bigint")
        tombstone = sql.lit(False)
        key: dict[str, Expression] = {}
        if METADATA in rows.columns:
            ids = sql.lit("")
            for topic, number in batch.topic_ids.items():
                ids = sql.when(sql.col(f"{METADATA}.topic") == topic, number).otherwise(ids)
            origin = sql.concat(ids, sql.lit(":"), sql.col(f"{METADATA}.partition"))
            offset = sql.col(f"{METADATA}.offset")
            if "tombstone" in rows.schema[METADATA].dataType.fieldNames():  # type: ignore[attr-defined]
                tombstone = sql.coalesce(sql.col(f"{METADATA}.tombstone"), sql.lit(False))
                key = {name: sql.when(tombstone, self._from_key(rows, name)) for name in self.key}
        deleted = tombstone
        if self.mode == "delete-aware" and self.deleted in rows.columns:
            deleted = tombstone | sql.coalesce(column_of(self.deleted).cast("boolean"), sql.lit(False))
        # Key columns that the transform returns for a tombstone take precedence over the record's key.
        stored = [
            sql.coalesce(column_of(name), key[name]).alias(name) if name in key else column_of(name) for name in columns
        ]
        return rows.select(*stored, origin.alias(ORIGIN), offset.alias(OFFSET), deleted.alias(DELETED), *origin_columns)

    def _from_key(self, rows: DataFrame, name: str) -> Expression:
        """A key column from the record's key: its text, or a field of its JSON if the key has several columns."""
        from pyspark.sql import functions as sql

        kind = rows.schema[name].dataType
        text = sql.col(f"{METADATA}.key").cast("string")
        value = text if len(self.key) == 1 else sql.get_json_object(text, f"$['{name}']")
        return value.try_cast(kind)


def _newer(new: str, old: str) -> str:
    return (
        f"({new}.{OFFSET} IS NULL OR {old}.{OFFSET} IS NULL OR {old}.{ORIGIN} IS DISTINCT FROM {new}.{ORIGIN}"
        f" OR {old}.{OFFSET} <= {new}.{OFFSET})"
    )
