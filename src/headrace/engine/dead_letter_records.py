"""Dead letters made from Kafka records, with as many bytes as `max_bytes` allows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from headrace.core.dead_letters import COMPACTED, MAX_BYTES, DeadLetter, RecordId, shortened, size_cutoff
from headrace.core.format import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from headrace.core.dead_letters import RejectedRow

TIMESTAMP_MICROS = "unix_micros({}) AS timestamp_micros"
"""SQL: the timestamp as a number, because Python has no datetime after the year 9999."""
_RECORD_SIZE = (
    "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + coalesce(aggregate(headers, 0L,"
    " (total, header) -> total + octet_length(header.key) + coalesce(octet_length(header.value), 0)), 0)"
)
"""SQL: the bytes of key, value and headers."""
_SIZE = f"{HIDDEN}size"
_LEFT_OUT = f"{HIDDEN}left_out"
_RECORD_ID = ("topic", "partition", "offset")


def dead_letter_records(
    frames: Iterable[DataFrame], rejected: Sequence[RejectedRow], max_bytes: int = MAX_BYTES
) -> list[DeadLetter]:
    """The records in `frames` whose rows a sink rejected; those beyond `max_bytes` without their bytes.

    A record that can no longer be read becomes a dead letter without its bytes, so that the loss is recorded.
    """
    dead_letters: list[DeadLetter] = []
    for frame in frames:
        dead_letters += _read(frame, rejected, max_bytes - sum(letter.size for letter in dead_letters))
    readable = {letter.origin for letter in dead_letters}
    return dead_letters + [
        DeadLetter(row.origin, None, None, None, (), f"{row.error} ({COMPACTED})", row.place)
        for row in rejected
        if row.origin not in readable
    ]


def _read(raw: DataFrame, rejected: Sequence[RejectedRow], max_bytes: int) -> list[DeadLetter]:
    by_origin = {row.origin: row for row in rejected}
    columns = (*_RECORD_ID, "key", "headers", "value")
    records = raw.where(_has_id(by_origin)).selectExpr(*columns, TIMESTAMP_MICROS.format("timestamp"))
    dead_letters = []
    for record in limit_bytes(records, max_bytes).collect():
        row = by_origin[RecordId(record["topic"], record["partition"], record["offset"])]
        dead_letters.append(to_dead_letter(record, row.error, row.place))
    return dead_letters


def limit_bytes(records: DataFrame, max_bytes: int) -> DataFrame:
    """The same records, with the bytes of as many as `max_bytes` allows; the others get their size in a column.

    Only the sizes are collected for this decision.
    """
    sized = records.withColumn(_SIZE, sql.expr(_RECORD_SIZE))
    sizes = sized.select(_SIZE, *_RECORD_ID).collect()
    if sum(row[_SIZE] for row in sizes) <= max_bytes:
        return records.withColumn(_LEFT_OUT, sql.lit(None).cast("bigint"))
    last = size_cutoff([(row[_SIZE], RecordId(*row[1:])) for row in sizes], max_bytes)
    keeps_bytes = sql.lit(False)
    if last is not None:
        size, (topic, partition, offset) = last
        values = (sql.lit(size).cast("bigint"), sql.lit(topic), sql.lit(partition), sql.lit(offset).cast("bigint"))
        limit = sql.struct(*(value.alias(name) for value, name in zip(values, (_SIZE, *_RECORD_ID), strict=True)))
        keeps_bytes = sql.struct(sql.col(_SIZE).cast("bigint").alias(_SIZE), *_RECORD_ID) <= limit
    kept = {name: sql.when(keeps_bytes, sql.col(name)) for name in ("key", "value", "headers")}
    return sized.withColumns({_LEFT_OUT: sql.when(~keeps_bytes, sql.col(_SIZE)), **kept}).drop(_SIZE)


def exclude(raw: DataFrame, origins: Collection[RecordId]) -> DataFrame:
    """The records in `raw` except those with an id in `origins`."""
    return raw.where(~_has_id(origins)) if origins else raw


def _has_id(origins: Collection[RecordId]) -> Column:
    by_partition: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in origins:
        by_partition.setdefault((topic, partition), []).append(offset)
    condition = sql.lit(False)
    for (topic, partition), offsets in by_partition.items():
        same_partition = (sql.col("topic") == topic) & (sql.col("partition") == partition)
        condition = condition | (same_partition & sql.col("offset").isin(offsets))
    return condition


def to_dead_letter(row: Row, error: str, place: str) -> DeadLetter:
    letter = DeadLetter(
        RecordId(row["topic"], row["partition"], row["offset"]),
        _timestamp(row["timestamp_micros"]),
        as_bytes(row["key"]),
        as_bytes(row["value"]),
        tuple((header["key"], as_bytes(header["value"])) for header in row["headers"] or ()),
        shortened(error),
        place,
    )
    return letter.without_bytes(row[_LEFT_OUT]) if row[_LEFT_OUT] else letter


def _timestamp(micros: int | None) -> datetime | None:
    """The timestamp; None also if Python has no such datetime: the dead letter matters more than its timestamp."""
    try:
        return None if micros is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return None


def as_bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)
