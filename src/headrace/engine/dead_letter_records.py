"""Records as they came out of Kafka, for the dead letters."""

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

MOMENT = "unix_micros({}) AS at"
"""As a number: Python has no time for what lies beyond the year 9999."""


SIZE = (
    "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + coalesce(aggregate(headers, 0L,"
    " (total, header) -> total + octet_length(header.key) + coalesce(octet_length(header.value), 0)), 0)"
)
"""SQL: the bytes of a record."""
_SIZE = f"{HIDDEN}size"
_LEFT_OUT = f"{HIDDEN}left_out"
_PLACE = ("topic", "partition", "offset")


def dead_letter_records(
    frames: Iterable[DataFrame], refused: Sequence[RejectedRow], max_bytes: int = MAX_BYTES
) -> list[DeadLetter]:
    """The records in `frames` that rows were made of which a sink refused, those over `max_bytes` without their bytes.

    One that can no longer be read leaves a letter without its bytes: the record is not stored, and that must show.
    """
    found: list[DeadLetter] = []
    for frame in frames:
        found += _read(frame, refused, max_bytes - sum(letter.size for letter in found))
    there = {letter.origin for letter in found}
    gone = [refusal for refusal in refused if refusal.origin not in there]
    return found + [
        DeadLetter(refusal.origin, None, None, None, (), f"{refusal.error} ({COMPACTED})", refusal.place)
        for refusal in gone
    ]


def _read(raw: DataFrame, refused: Sequence[RejectedRow], max_bytes: int) -> list[DeadLetter]:
    by_origin = {refusal.origin: refusal for refusal in refused}
    columns = ("topic", "partition", "offset", "key", "headers", "value")
    wanted = raw.where(_among(by_origin)).selectExpr(*columns, MOMENT.format("timestamp"))
    letters = []
    for row in fitting(wanted, max_bytes).collect():
        refusal = by_origin[RecordId(row["topic"], row["partition"], row["offset"])]
        letters.append(letter(row, refusal.error, refusal.place))
    return letters


def fitting(records: DataFrame, max_bytes: int) -> DataFrame:
    """The same records, with the bytes of as many as `max_bytes` allows; `left_out` is the size of the others.

    Only the sizes come to the driver before that is decided.
    """
    sized = records.withColumn(_SIZE, sql.expr(SIZE))
    found = sized.select(_SIZE, *_PLACE).collect()
    if sum(row[_SIZE] for row in found) <= max_bytes:
        return records.withColumn(_LEFT_OUT, sql.lit(None).cast("bigint"))
    last = size_cutoff([(row[_SIZE], RecordId(*row[1:])) for row in found], max_bytes)
    whole = sql.lit(False)
    if last is not None:
        size, (topic, partition, offset) = last
        values = (sql.lit(size).cast("bigint"), sql.lit(topic), sql.lit(partition), sql.lit(offset).cast("bigint"))
        limit = sql.struct(*(value.alias(name) for value, name in zip(values, (_SIZE, *_PLACE), strict=True)))
        whole = sql.struct(sql.col(_SIZE).cast("bigint").alias(_SIZE), *_PLACE) <= limit
    bare = {name: sql.when(whole, sql.col(name)) for name in ("key", "value", "headers")}
    return sized.withColumns({_LEFT_OUT: sql.when(~whole, sql.col(_SIZE)), **bare}).drop(_SIZE)


def without(raw: DataFrame, origins: Collection[RecordId]) -> DataFrame:
    """The records in `raw` but for those of `origins`."""
    return raw.where(~_among(origins)) if origins else raw


def _among(origins: Collection[RecordId]) -> Column:
    places: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in origins:
        places.setdefault((topic, partition), []).append(offset)
    wanted = sql.lit(False)
    for (topic, partition), offsets in places.items():
        here = (sql.col("topic") == topic) & (sql.col("partition") == partition)
        wanted = wanted | (here & sql.col("offset").isin(offsets))
    return wanted


def letter(row: Row, error: str, place: str) -> DeadLetter:
    made = DeadLetter(
        RecordId(row["topic"], row["partition"], row["offset"]),
        _moment(row["at"]),
        as_bytes(row["key"]),
        as_bytes(row["value"]),
        tuple((header["key"], as_bytes(header["value"])) for header in row["headers"] or ()),
        shortened(error),
        place,
    )
    return made.without_bytes(row[_LEFT_OUT]) if row[_LEFT_OUT] else made


def _moment(micros: int | None) -> datetime | None:
    """None also for one that Python does not have: the dead letter matters more than its time."""
    try:
        return None if micros is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return None


def as_bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)
