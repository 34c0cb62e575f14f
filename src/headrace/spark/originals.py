"""Records as they came out of Kafka, for the dead letters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from headrace.letters import MAX_BYTES, Letter, Origin, too_large

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from headrace.letters import Refusal

MOMENT = "unix_micros({}) AS at"
"""As a number: Python has no time for what lies beyond the year 9999."""


SIZE = (
    "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + coalesce(aggregate(headers, 0L,"
    " (total, header) -> total + octet_length(header.key) + coalesce(octet_length(header.value), 0)), 0)"
)
"""SQL: the bytes of a record."""
COMPACTED = "the broker has deleted the record since it was read (compaction or retention): its key and value are lost"


def originals(frames: Iterable[DataFrame], refused: Sequence[Refusal], max_bytes: int = MAX_BYTES) -> list[Letter]:
    """The records in `frames` that rows were made of which a sink refused; BadRecord if they are larger than allowed.

    One that can no longer be read leaves a letter without its bytes: the record is not stored, and that must show.
    """
    found = [letter for frame in frames for letter in _read(frame, refused, max_bytes)]
    there = {letter.origin for letter in found}
    gone = [refusal for refusal in refused if refusal.origin not in there]
    return found + [
        Letter(refusal.origin, None, None, None, (), f"{refusal.error} ({COMPACTED})", refusal.place)
        for refusal in gone
    ]


def _read(raw: DataFrame, refused: Sequence[Refusal], max_bytes: int) -> list[Letter]:
    by_origin = {refusal.origin: refusal for refusal in refused}
    letters = []
    columns = ("topic", "partition", "offset", "key", "headers", "value")
    wanted = raw.where(_among(by_origin))
    ((size,),) = wanted.selectExpr(f"coalesce(sum({SIZE}), 0)").collect()
    if size > max_bytes:
        raise too_large(size, max_bytes)
    for row in wanted.selectExpr(*columns, MOMENT.format("timestamp")).collect():
        refusal = by_origin[Origin(row["topic"], row["partition"], row["offset"])]
        letters.append(letter(row, refusal.error, refusal.place))
    return letters


def without(raw: DataFrame, origins: Collection[Origin]) -> DataFrame:
    """The records in `raw` but for those of `origins`."""
    return raw.where(~_among(origins)) if origins else raw


def _among(origins: Collection[Origin]) -> Column:
    places: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in origins:
        places.setdefault((topic, partition), []).append(offset)
    wanted = sql.lit(False)
    for (topic, partition), offsets in places.items():
        here = (sql.col("topic") == topic) & (sql.col("partition") == partition)
        wanted = wanted | (here & sql.col("offset").isin(offsets))
    return wanted


def letter(row: Row, error: str, place: str) -> Letter:
    return Letter(
        Origin(row["topic"], row["partition"], row["offset"]),
        _moment(row["at"]),
        as_bytes(row["key"]),
        as_bytes(row["value"]),
        tuple((header["key"], as_bytes(header["value"])) for header in row["headers"] or ()),
        error,
        place,
    )


def _moment(micros: int | None) -> datetime | None:
    """None also for one that Python does not have: the dead letter matters more than its time."""
    try:
        return None if micros is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return None


def as_bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)
