"""Rows as the records they become, and which of them a topic cannot take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.dead_letters import RecordId
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.formats.avro import Avro, encode_errors
from headrace.formats.base import MOMENT
from headrace.spark.origin_columns import ORIGIN_COLUMNS, origin_column_exprs
from headrace.spark.sql import column_of, quoted, verbatim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.core.format import Format
    from headrace.types import TopicPartition

TOPIC, PARTITION, KEY, VALUE, HEADERS, TIMESTAMP = "topic", "partition", "key", "value", "headers", "timestamp"
_HEADERS = "array<struct<key:string,value:binary>>"
_OVERHEAD = 100
"""Bytes of a record beside key, value and headers, at the most."""


@dataclass(frozen=True, slots=True)
class RecordMapping:
    """Which columns of the rows become which parts of a record. `key`, `partition`, `timestamp` and `headers` may be a
    column, or a field of one (`_kafka.key`); `headers` also names and the column of each. `exclude` are columns that
    are left out of the value."""

    format: Format
    topic: str | None
    topic_column: str | None = None
    key: str | None = None
    partition: str | None = None
    headers: str | Mapping[str, str] | None = None
    timestamp: str | None = None
    exclude: tuple[str, ...] = ()

    def frame(self, rows: DataFrame, place: Sequence[str] = ORIGIN_COLUMNS, *, dry: bool = False) -> DataFrame:
        """The parts that are asked for, and of ORIGIN_COLUMNS what is named. A record without a value stays one."""
        from pyspark.sql import functions as sql

        encoded = self.format.dry_run_encode_expr if dry else self.format.encode_expr
        value = sql.expr(encoded(self._columns(rows), self.topic))
        if METADATA in rows.columns and "tombstone" in rows.schema[METADATA].dataType.fieldNames():  # type: ignore[attr-defined]
            value = sql.when(sql.coalesce(sql.col(f"{METADATA}.tombstone"), sql.lit(False)), None).otherwise(value)
        parts: dict[str, Column] = {}
        if self.topic_column is not None:
            parts[TOPIC] = _typed(rows, self.topic_column, "string")
        if self.partition is not None:
            # A number that is none of a partition is found among the others, so it must not be cut to fit.
            parts[PARTITION] = _typed(rows, self.partition, "int").cast("bigint")
        if self.key is not None:
            parts[KEY] = _bytes(rows, self.key)
        if self.headers is not None:
            parts[HEADERS] = self._headers(rows)
        if self.timestamp is not None:
            parts[TIMESTAMP] = _milliseconds(rows, self.timestamp)
        parts[VALUE] = value
        with verbatim(rows.sparkSession):
            made = rows.select(*[column.alias(name) for name, column in parts.items()], *origin_column_exprs(rows))
        return made.select(*parts, *place)

    def check(self, rows: DataFrame, *, dry: bool = False) -> None:
        """ConfigError if rows of these columns cannot become records. `dry`: no schema is registered."""
        if isinstance(self.format, Avro):  # before its schema is registered
            encode_errors.check_schema(rows, self.format.body(self._columns(rows), self.topic))
        self.frame(rows, dry=dry)

    def _columns(self, rows: DataFrame) -> dict[str, Any]:
        """Those of the value, with their types."""
        fields = rows.schema.jsonValue()["fields"]
        there = {f["name"].lower() for f in fields}
        if absent := [name for name in self.exclude if name.lower() not in there]:
            raise ConfigError(f"exclude: the rows have no column {absent[0]}", hint=f"rows: {', '.join(rows.columns)}")
        others = {METADATA, (self.topic_column or METADATA).lower(), *map(str.lower, self.exclude)}
        found = {f["name"]: f["type"] for f in fields if f["name"].lower() not in others}
        if not found:
            raise ConfigError("exclude leaves no column for the value", hint="keep one of them, or add one")
        return found

    def _headers(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as sql

        if isinstance(self.headers, str):
            if _kind(rows, self.headers) != _HEADERS:
                raise ConfigError(
                    f"headers={self.headers!r} is {_kind(rows, self.headers)}",
                    hint=f'headers="{METADATA}.headers", or headers={{"name": "column"}}',
                )
            return _column(rows, self.headers)
        named = dict(self.headers or {})
        made = [sql.struct(sql.lit(name).alias("key"), _bytes(rows, c).alias("value")) for name, c in named.items()]
        return sql.array(*made)


def _column(rows: DataFrame, name: str) -> Column:
    """A column, or a field of one. Asked for by what is there: to Spark `user` alone may also be a function."""
    from pyspark.sql import functions as sql

    there = {column.lower() for column in rows.columns}
    if name.lower() in there:
        return column_of(name)
    if name.partition(".")[0].lower() in there:
        return sql.col(".".join(quoted(part) for part in name.split(".")))
    raise ConfigError(f"the rows have no column {name}", hint=f"rows: {', '.join(rows.columns)}")


def _kind(rows: DataFrame, name: str) -> str:
    """The type of a column, or of a field of one."""
    from pyspark.errors import AnalysisException

    try:
        return str(rows.select(_column(rows, name)).schema[0].dataType.simpleString())
    except AnalysisException as error:
        raise ConfigError(f"the rows have no field {name}", hint=f"rows: {rows.schema.simpleString()}") from error


def _typed(rows: DataFrame, name: str, kind: str) -> Column:
    found = _kind(rows, name)
    if found != kind and not (kind == "int" and found in ("tinyint", "smallint", "bigint")):
        raise ConfigError(f"{name} is {found}, where {kind} is meant", hint=f"CAST({name} AS {kind.upper()})")
    return _column(rows, name)


def _milliseconds(rows: DataFrame, name: str) -> Column:
    """A time as Kafka has it."""
    from pyspark.sql import functions as sql

    if (found := _kind(rows, name)) not in ("timestamp", "bigint"):
        raise ConfigError(
            f"timestamp={name!r}: expected a TIMESTAMP, or milliseconds as BIGINT, got {found}",
            hint=f'timestamp="{METADATA}.timestamp", or CAST({name} AS TIMESTAMP) in the transform',
        )
    return sql.unix_millis(_column(rows, name)) if found == "timestamp" else _column(rows, name)


def _bytes(rows: DataFrame, name: str) -> Column:
    """Bytes as they are, text as UTF-8, a number or a time as its text."""
    from pyspark.sql import functions as sql

    kind = _kind(rows, name)
    if kind.startswith(("array", "map", "struct", "variant")):
        raise ConfigError(f"{name} is {kind}: it has no bytes of its own", hint=f"to_json({name}) in the transform")
    column = _column(rows, name)
    if kind == "timestamp":  # with its offset, as in a value: without, two moments of an autumn night are one text
        column = sql.date_format(column, MOMENT)
    return column if kind == "binary" else column.cast("string").cast("binary")


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic takes. `partitions` is how many it has."""

    partitions: int
    most_bytes: int
    compacted: bool

    def refused(self, records: Any) -> Iterator[tuple[int, str]]:
        """The numbers of those in `records`, an Arrow batch, that it does not take, and why."""
        import pyarrow as pa
        from pyarrow import compute

        pc: Any = compute  # its stubs know less than it does
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        sizes = pc.fill_null(pc.binary_length(columns[VALUE]), 0)
        if KEY in columns:
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(columns[KEY]), 0))
        if HEADERS in columns:
            sizes = pc.add(sizes, pa.array(_header_sizes(columns[HEADERS]), sizes.type))
        for row in _true(pc.greater(sizes, self.most_bytes - _OVERHEAD)):
            yield row, f"a record of {sizes[row].as_py():,} bytes is too large: {self.most_bytes:,} are allowed"
        if self.compacted:
            for row in _true(columns[KEY].is_null()) if KEY in columns else range(len(records)):
                yield row, "a record without a key cannot go to a compacted topic"
        if PARTITION in columns:
            numbers = columns[PARTITION]
            outside = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, self.partitions))
            for row in _true(pc.fill_null(outside, False)):
                yield row, f"there is no partition {numbers[row].as_py()}: the topic has {self.partitions}"

        if TIMESTAMP in columns:
            times = columns[TIMESTAMP]
            for row in _true(pc.fill_null(pc.less(times, 0), False)):
                yield row, f"a record has no timestamp before 1970: {times[row].as_py()} ms"


def _true(mask: Any) -> list[int]:
    return [row for row, wrong in enumerate(mask.to_pylist()) if wrong] if mask.true_count else []


def _header_sizes(headers: Any) -> list[int]:
    return [
        sum(len(header["key"].encode()) + len(header["value"] or b"") + 10 for header in found or ())
        for found in headers.to_pylist()
    ]


def messages(records: Any) -> list[dict[str, Any]]:
    """The records of an Arrow batch, as `produce_batch` takes them; with headers, as `produce` does."""
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    values = columns[VALUE].to_pylist()
    if columns.keys().isdisjoint((KEY, PARTITION, HEADERS, TIMESTAMP)):
        return [{"value": value} for value in values]
    keys = columns[KEY].to_pylist() if KEY in columns else [None] * len(values)
    made = [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]
    if PARTITION in columns:
        for message, partition in zip(made, columns[PARTITION].to_pylist(), strict=True):
            if partition is not None:
                message["partition"] = partition
    if HEADERS in columns:
        for message, headers in zip(made, columns[HEADERS].to_pylist(), strict=True):
            message["headers"] = [(header["key"], header["value"]) for header in headers or ()]
    if TIMESTAMP in columns:
        for message, time in zip(made, columns[TIMESTAMP].to_pylist(), strict=True):
            if time is not None:
                message["timestamp"] = time
    return made


def place_of(records: Any, row: int, at: TopicPartition | None = None) -> RecordId | None:
    """Where a row came from, if that is known; from `at`, if that is given."""
    *before, offset = (
        records.column(name)[row].as_py() for name in (ORIGIN_COLUMNS if at is None else ORIGIN_COLUMNS[2:])
    )
    topic, partition = before if at is None else (at.topic, at.partition)
    return None if offset is None else RecordId(topic, partition, offset)
