"""Encodes rows as Kafka records, and checks the limits of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.dead_letters import RecordId
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.formats.avro import Avro, encode_errors
from headrace.formats.base import TIMESTAMP_PATTERN
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
"""Maximum size of a record without its key, value and headers."""


@dataclass(frozen=True, slots=True)
class RecordMapping:
    """Which columns become which parts of a record. `key`, `partition`, `timestamp` and `headers` name a column or a
    field of one (`_kafka.key`); `headers` may also map header names to columns. `exclude` lists columns that are left
    out of the value."""

    format: Format
    topic: str | None
    topic_column: str | None = None
    key: str | None = None
    partition: str | None = None
    headers: str | Mapping[str, str] | None = None
    timestamp: str | None = None
    exclude: tuple[str, ...] = ()

    def encode(self, rows: DataFrame, origin: Sequence[str] = ORIGIN_COLUMNS, *, dry: bool = False) -> DataFrame:
        """The columns of the records, and those of `origin`. A tombstone remains a tombstone."""
        from pyspark.sql import functions as sql

        encoded = self.format.dry_run_encode_expr if dry else self.format.encode_expr
        value = sql.expr(encoded(self._columns(rows), self.topic))
        if METADATA in rows.columns and "tombstone" in rows.schema[METADATA].dataType.fieldNames():  # type: ignore[attr-defined]
            value = sql.when(sql.coalesce(sql.col(f"{METADATA}.tombstone"), sql.lit(False)), None).otherwise(value)
        parts: dict[str, Column] = {}
        if self.topic_column is not None:
            parts[TOPIC] = _column_of_type(rows, self.topic_column, "string")
        if self.partition is not None:
            # As BIGINT, so that a number out of range is not truncated to a valid partition.
            parts[PARTITION] = _column_of_type(rows, self.partition, "int").cast("bigint")
        if self.key is not None:
            parts[KEY] = _bytes(rows, self.key)
        if self.headers is not None:
            parts[HEADERS] = self._headers(rows)
        if self.timestamp is not None:
            parts[TIMESTAMP] = _milliseconds(rows, self.timestamp)
        parts[VALUE] = value
        with verbatim(rows.sparkSession):
            selected = rows.select(*[column.alias(name) for name, column in parts.items()], *origin_column_exprs(rows))
        return selected.select(*parts, *origin)

    def check(self, rows: DataFrame, *, dry: bool = False) -> None:
        """ConfigError if rows with these columns cannot become records. `dry`: register no schema."""
        if isinstance(self.format, Avro):  # before its schema is registered
            encode_errors.check_schema(rows, self.format.body(self._columns(rows), self.topic))
        self.encode(rows, dry=dry)

    def _columns(self, rows: DataFrame) -> dict[str, Any]:
        """The columns of the value with their types."""
        fields = rows.schema.jsonValue()["fields"]
        names = {f["name"].lower() for f in fields}
        if missing := [name for name in self.exclude if name.lower() not in names]:
            raise ConfigError(f"exclude: the rows have no column {missing[0]}", hint=f"rows: {', '.join(rows.columns)}")
        others = {METADATA, (self.topic_column or METADATA).lower(), *map(str.lower, self.exclude)}
        found = {f["name"]: f["type"] for f in fields if f["name"].lower() not in others}
        if not found:
            raise ConfigError("exclude leaves no column for the value", hint="keep one of them, or add one")
        return found

    def _headers(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as sql

        if isinstance(self.headers, str):
            if (found := _type(rows, self.headers)) != _HEADERS:
                raise ConfigError(
                    f"headers={self.headers!r}: expected {_HEADERS}, got {found}",
                    hint=f'headers="{METADATA}.headers", or headers={{"name": "column"}}',
                )
            return _column(rows, self.headers)
        named = dict(self.headers or {})
        pairs = [sql.struct(sql.lit(name).alias("key"), _bytes(rows, c).alias("value")) for name, c in named.items()]
        return sql.array(*pairs)


def _column(rows: DataFrame, name: str) -> Column:
    """A column, or a field of one. Checked against the schema, because Spark would parse `user` as a function."""
    from pyspark.sql import functions as sql

    columns = {column.lower() for column in rows.columns}
    if name.lower() in columns:
        return column_of(name)
    if name.partition(".")[0].lower() in columns:
        return sql.col(".".join(quoted(part) for part in name.split(".")))
    raise ConfigError(f"the rows have no column {name}", hint=f"rows: {', '.join(rows.columns)}")


def _type(rows: DataFrame, name: str) -> str:
    """The type of a column, or of a field of one."""
    from pyspark.errors import AnalysisException

    try:
        return str(rows.select(_column(rows, name)).schema[0].dataType.simpleString())
    except AnalysisException as error:
        raise ConfigError(f"the rows have no field {name}", hint=f"rows: {rows.schema.simpleString()}") from error


def _column_of_type(rows: DataFrame, name: str, expected: str) -> Column:
    found = _type(rows, name)
    if found != expected and not (expected == "int" and found in ("tinyint", "smallint", "bigint")):
        raise ConfigError(
            f"column {name}: expected {expected}, got {found}", hint=f"CAST({name} AS {expected.upper()})"
        )
    return _column(rows, name)


def _milliseconds(rows: DataFrame, name: str) -> Column:
    """A time in milliseconds since the epoch."""
    from pyspark.sql import functions as sql

    if (found := _type(rows, name)) not in ("timestamp", "bigint"):
        raise ConfigError(
            f"timestamp={name!r}: expected a TIMESTAMP, or milliseconds as BIGINT, got {found}",
            hint=f'timestamp="{METADATA}.timestamp", or CAST({name} AS TIMESTAMP) in the transform',
        )
    return sql.unix_millis(_column(rows, name)) if found == "timestamp" else _column(rows, name)


def _bytes(rows: DataFrame, name: str) -> Column:
    """Bytes unchanged, text as UTF-8, a number or a time as text."""
    from pyspark.sql import functions as sql

    found = _type(rows, name)
    if found.startswith(("array", "map", "struct", "variant")):
        raise ConfigError(
            f"column {name}: expected bytes, text, a number or a time, got {found}",
            hint=f"to_json({name}) in the transform",
        )
    column = _column(rows, name)
    if found == "timestamp":  # with its UTC offset: otherwise two times when daylight saving ends have the same text
        column = sql.date_format(column, TIMESTAMP_PATTERN)
    return column if found == "binary" else column.cast("string").cast("binary")


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of a topic. `partitions` is their number."""

    partitions: int
    max_bytes: int
    compacted: bool

    def rejections(self, records: Any) -> Iterator[tuple[int, str]]:
        """Row number and reason of each record in `records`, an Arrow batch, that the topic rejects."""
        import pyarrow as pa
        from pyarrow import compute

        pc: Any = compute  # its stubs are incomplete
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        sizes = pc.fill_null(pc.binary_length(columns[VALUE]), 0)
        if KEY in columns:
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(columns[KEY]), 0))
        if HEADERS in columns:
            sizes = pc.add(sizes, pa.array(_header_sizes(columns[HEADERS]), sizes.type))
        for row in _true_rows(pc.greater(sizes, self.max_bytes - _OVERHEAD)):
            yield row, f"a record of {sizes[row].as_py():,} bytes is too large: {self.max_bytes:,} are allowed"
        if self.compacted:
            for row in _true_rows(columns[KEY].is_null()) if KEY in columns else range(len(records)):
                yield row, "a record without a key cannot go to a compacted topic"
        if PARTITION in columns:
            numbers = columns[PARTITION]
            outside = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, self.partitions))
            for row in _true_rows(pc.fill_null(outside, False)):
                yield row, f"there is no partition {numbers[row].as_py()}: the topic has {self.partitions}"

        if TIMESTAMP in columns:
            times = columns[TIMESTAMP]
            for row in _true_rows(pc.fill_null(pc.less(times, 0), False)):
                yield row, f"a record has no timestamp before 1970: {times[row].as_py()} ms"


def _true_rows(mask: Any) -> list[int]:
    return [row for row, wrong in enumerate(mask.to_pylist()) if wrong] if mask.true_count else []


def _header_sizes(headers: Any) -> list[int]:
    return [
        sum(len(header["key"].encode()) + len(header["value"] or b"") + 10 for header in found or ())
        for found in headers.to_pylist()
    ]


def messages(records: Any) -> list[dict[str, Any]]:
    """The records of an Arrow batch as arguments of `produce_batch`; with headers or timestamps, of `produce`."""
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    values = columns[VALUE].to_pylist()
    if columns.keys().isdisjoint((KEY, PARTITION, HEADERS, TIMESTAMP)):
        return [{"value": value} for value in values]
    keys = columns[KEY].to_pylist() if KEY in columns else [None] * len(values)
    found = [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]
    if PARTITION in columns:
        for message, partition in zip(found, columns[PARTITION].to_pylist(), strict=True):
            if partition is not None:
                message["partition"] = partition
    if HEADERS in columns:
        for message, headers in zip(found, columns[HEADERS].to_pylist(), strict=True):
            message["headers"] = [(header["key"], header["value"]) for header in headers or ()]
    if TIMESTAMP in columns:
        for message, time in zip(found, columns[TIMESTAMP].to_pylist(), strict=True):
            if time is not None:
                message["timestamp"] = time
    return found


def origin_of(records: Any, row: int, at: TopicPartition | None = None) -> RecordId | None:
    """The id of a row's source record, if it is known; `at` if all rows come from one partition."""
    *before, offset = (
        records.column(name)[row].as_py() for name in (ORIGIN_COLUMNS if at is None else ORIGIN_COLUMNS[2:])
    )
    topic, partition = before if at is None else (at.topic, at.partition)
    return None if offset is None else RecordId(topic, partition, offset)
