"""What sinks in SQL databases have in common: names, upserts guarded by the source offset, schemas that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.errors import BadRecord, ConfigError
from headrace.sinks.base import METADATA
from headrace.spark.quoting import quoted as for_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from headrace.types import Batch

_FLAGS = frozenset({"boolean", "tinyint", "smallint", "int", "bigint"})
Mode = Literal["append", "upsert", "delete-aware"]

ORIGIN, OFFSET, DELETED = "headrace_origin", "headrace_offset", "headrace_deleted"
"""Columns of an upserted table: the partition a row came from, of the topic by its id, and the offset. The third is
only on the way there."""


PLACE = ("headrace_topic", "headrace_partition", "headrace_row_offset")
"""Columns beside those that are stored, while a row may still be refused: the record it came from."""
ASIDE = 'dead_letters="…" puts such records aside; or correct them in the transform'


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def qualified(table: str) -> str:
    """A table's name, quoted, with its schema if it has one."""
    return ".".join(quoted(part) for part in table.split("."))


def refused(sink: str, reason: object, hint: str = ASIDE) -> BadRecord:
    return BadRecord(f"{sink} refuses a row: {reason}", hint=hint)


def already_there(sink: object, reason: object) -> ConfigError:
    return ConfigError(
        f"{sink}: a row is there already: {reason}",
        hint='mode="upsert" with key=… puts a row in place of the one before it',
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows meet what is in a table: appended, or put in place of the row with the same key."""

    table: str
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    deleted: str = "deleted"

    @classmethod
    def of(cls, table: str, key: str | Sequence[str] | None, mode: str, deleted: str) -> Shape:
        """Checked, or ConfigError."""
        if not isinstance(table, str) or not all(table.split(".")):
            raise ConfigError(f"table={table!r} is not a table's name", hint='table="clicks"')
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        if mode not in get_args(Mode):
            raise ConfigError(f"mode={mode!r} is unknown", hint=f"one of: {', '.join(get_args(Mode))}")
        if mode == "append" and keys:
            raise ConfigError("rows that are appended need no key", hint='mode="upsert"')
        if mode != "append" and (not keys or not all(isinstance(name, str) and name for name in keys)):
            raise ConfigError(f"mode={mode!r} needs the columns of the key", hint='key="user"')
        if mode != "delete-aware" and deleted != "deleted":
            raise ConfigError(f"deleted={deleted!r} means nothing with mode={mode!r}", hint='mode="delete-aware"')
        return cls(table, mode, keys, deleted)  # type: ignore[arg-type]

    @property
    def keyed(self) -> bool:
        return self.mode != "append"

    @property
    def name(self) -> str:
        return qualified(self.table)

    @property
    def guards(self) -> tuple[str, ...]:
        """Columns of the table beside those of the rows."""
        return (ORIGIN, OFFSET) if self.keyed else ()

    def columns(self, names: Sequence[str]) -> list[str]:
        """Those of the rows that are stored. ConfigError if one of the key is not among them."""
        kept = [
            name for name in names if name != METADATA and not (self.mode == "delete-aware" and name == self.deleted)
        ]
        if taken := [name for name in kept if name.lower().startswith("headrace_")]:
            raise ConfigError(f"a column is called {taken[0]}: such names are ours", hint="rename it in the transform")
        if missing := [name for name in self.key if name not in kept]:
            raise ConfigError(f"the rows have no column {missing[0]}, which is in the key", hint=f"rows: {kept}")
        if self.mode == "delete-aware" and self.deleted not in names and METADATA not in names:
            raise ConfigError(
                f"no column {self.deleted} says which rows delete, and the transform dropped {METADATA}",
                hint=f'keep {METADATA}, or name the boolean column: deleted="…"',
            )
        return kept

    def staged(self, names: Sequence[str]) -> list[str]:
        """The columns of a table from which `merge` takes rows."""
        return [*self.columns(names), *((ORIGIN, OFFSET, DELETED) if self.keyed else ())]

    def merge(self, source: str, columns: Sequence[str]) -> list[str]:
        """SQL that brings the rows of `source`, a table or a query in parentheses, into the table.

        Of several rows with one key the newest counts. An older one than what is there, by the offset in the same
        partition, changes nothing: neither a replay nor a run that was overtaken puts it back.
        """
        if not self.keyed:
            return [f"INSERT INTO {self.name} ({listed(columns)}) SELECT {listed(columns)} FROM {source} AS s"]
        key = listed(self.key)
        ranked = f"SELECT s.*, row_number() OVER (PARTITION BY {key} ORDER BY {OFFSET} DESC) AS headrace_rank"
        newest = f"(SELECT * FROM ({ranked} FROM {source} AS s) AS r WHERE headrace_rank = 1)"
        same = " AND ".join(f"t.{quoted(name)} = n.{quoted(name)}" for name in self.key)
        gone = f"SELECT 1 FROM {newest} AS n WHERE n.{DELETED} AND {same} AND {_newer('n', 't')}"
        stored = [*columns, *self.guards]
        # Ordered, so that two transactions that meet in several keys do not wait for each other.
        there = f"SELECT {listed(stored)} FROM {newest} AS n WHERE NOT n.{DELETED} ORDER BY {key}"
        changes = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in stored if n not in self.key)
        update = f"ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE {_newer('excluded', 't')}"
        return [
            f"DELETE FROM {self.name} AS t WHERE EXISTS ({gone})",
            f"INSERT INTO {self.name} AS t ({listed(stored)}) {there} {update}",
        ]

    def frame(self, batch: Batch, rows: DataFrame, *, traced: bool = False) -> DataFrame:
        """The columns that go into `staged`, of `rows`, and if `traced` those of PLACE."""
        from pyspark.sql import functions as sql

        columns = self.columns(rows.columns)
        more = traces(rows) if traced else []
        if not self.keyed:
            return rows.select(*[column_of(name) for name in columns], *more)
        kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
        if not kinds.get(METADATA, "struct").startswith("struct"):
            raise ConfigError(
                f"the transform made {METADATA} a {kinds[METADATA]}", hint="leave it as it is, or drop it"
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
        # What a transform made of the key columns of a tombstone wins over the record's key.
        stored = [
            sql.coalesce(column_of(name), key[name]).alias(name) if name in key else column_of(name) for name in columns
        ]
        return rows.select(*stored, origin.alias(ORIGIN), offset.alias(OFFSET), deleted.alias(DELETED), *more)

    def _from_key(self, rows: DataFrame, name: str) -> Expression:
        """A column of the key from the record's own key: its text, or a field of its JSON where the key has several."""
        from pyspark.sql import functions as sql

        kind = rows.schema[name].dataType
        text = sql.col(f"{METADATA}.key").cast("string")
        found = text if len(self.key) == 1 else sql.get_json_object(text, f"$['{name}']")
        return found.try_cast(kind)


def traces(rows: DataFrame) -> list[Expression]:
    """Where each row came from, NULL where the transform does not say."""
    from pyspark.sql import functions as sql

    if METADATA in rows.columns:
        found = [sql.col(f"{METADATA}.{name}") for name in ("topic", "partition", "offset")]
    else:
        found = [sql.lit(None).cast(kind) for kind in ("string", "int", "bigint")]
    return [column.alias(name) for name, column in zip(PLACE, found, strict=True)]


def _newer(new: str, old: str) -> str:
    return (
        f"({new}.{OFFSET} IS NULL OR {old}.{OFFSET} IS NULL OR {old}.{ORIGIN} IS DISTINCT FROM {new}.{ORIGIN}"
        f" OR {old}.{OFFSET} <= {new}.{OFFSET})"
    )


def times_in_utc(rows: DataFrame) -> bool:
    """Whether Spark writes times as text in UTC."""
    return rows.sparkSession.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC", "Z")


def time_text(column: Expression, *, utc: bool) -> Expression:
    """A TIMESTAMP as text that says its zone; a local time alone is ambiguous once a year."""
    from pyspark.sql import functions as sql

    if utc:
        return sql.concat(column.cast("string"), sql.lit("Z"))
    return sql.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSSxxxxx")


def column_of(name: str) -> Expression:
    from pyspark.sql import functions as sql

    return sql.col(for_spark(name))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that is there: `required` ones have neither a default nor room for NULL, `strict` ones may
    have a default, which is no help against a NULL that is given."""

    name: str
    kind: str
    shown: str
    required: bool
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """A table, and the columns that rows bring to it, each with the type it would be created with."""

    shape: Shape
    sink: str
    types: Mapping[str, str]
    extra: Mapping[str, str]

    @property
    def wanted(self) -> dict[str, str]:
        return {**self.types, **{name: self.extra[name] for name in self.shape.guards}}

    def create(self) -> str:
        columns = [f"{quoted(name)} {kind}" for name, kind in self.wanted.items()]
        if self.shape.keyed:
            columns.append(f"PRIMARY KEY ({listed(self.shape.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.shape.name} ({', '.join(columns)})"

    def evolve(self, there: Sequence[Column]) -> list[str]:
        return [f"ALTER TABLE {self.shape.name} ADD COLUMN {quoted(n)} {self.wanted[n]}" for n in self.lacking(there)]

    def lacking(self, there: Sequence[Column]) -> list[str]:
        names = {column.name for column in there}
        return [name for name in self.wanted if name not in names]

    def made(
        self,
        look: Callable[[], Sequence[Column]],
        define: Callable[..., Any],
        takes: Callable[[str, Column], bool],
        *,
        create: bool,
        evolve: bool,
    ) -> Sequence[Column]:
        """The table's columns, after it was created and evolved as told; ConfigError if the rows do not fit then.

        `look` gives the columns as they are, none if there is no table; `define` carries out statements.
        """
        there = look()
        if not there and create:
            define(self.create())
            there = look()
        if there and evolve and (additions := self.evolve(there)):
            define(*additions)
            there = look()
        self._check(there, takes)
        return there

    def check(
        self, there: Sequence[Column], takes: Callable[[str, Column], bool], *, create: bool, evolve: bool
    ) -> None:
        """ConfigError if the rows would not fit after `made`; changes nothing."""
        if not there and create:
            return
        added = [Column(name, self.wanted[name], self.wanted[name], required=False) for name in self.lacking(there)]
        # A column that would be added is of the very type of the rows.
        names = {column.name for column in added}
        known = [*there, *added] if there and evolve else there
        self._check(known, lambda name, column: name in names or takes(name, column))

    def _check(self, there: Sequence[Column], fits: Callable[[str, Column], bool]) -> None:
        """ConfigError, with both sides, if the rows cannot go into the table as it is."""
        if not there:
            raise ConfigError(f"{self.sink}: there is no such table", hint="create=True makes it; or: " + self.create())
        unfit = [column for column in there if column.name in self.types and not fits(column.name, column)]
        required = [column for column in there if column.required and column.name not in self.wanted]
        lacking = self.lacking(there)
        if not (unfit or required or lacking):
            return
        said = [f"the table has no column {name}" for name in lacking]
        said += [f"{column.name} is {self.types[column.name]}, not {column.shown}" for column in unfit]
        said += [f"the rows have no column {column.name}, which the table requires" for column in required]
        rows = ", ".join(f"{name} {kind}" for name, kind in self.types.items())
        table = ", ".join(f"{column.name} {column.shown}" for column in there)
        only_lacking = not (unfit or required)
        raise ConfigError(
            f"the rows do not fit {self.sink}: {'; '.join(said)}; rows: {rows}; table: {table}",
            hint="evolve=True adds them; or: " + "; ".join(self.evolve(there))
            if only_lacking
            else "change the transform, or the table",
        )
