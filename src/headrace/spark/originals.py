"""Records as they came out of Kafka, for the dead letters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from headrace.letters import Letter, Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row

    from headrace.letters import Refusal

MOMENT = "unix_micros({}) AS at"
"""As a number: Python has no time for what lies beyond the year 9999."""


def originals(raw: DataFrame, refused: Sequence[Refusal]) -> list[Letter]:
    """The records in `raw` that rows were made of which a sink refused."""
    by_origin = {refusal.origin: refusal for refusal in refused}
    places: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in by_origin:
        places.setdefault((topic, partition), []).append(offset)
    wanted = sql.lit(False)
    for (topic, partition), offsets in places.items():
        here = (sql.col("topic") == topic) & (sql.col("partition") == partition)
        wanted = wanted | (here & sql.col("offset").isin(offsets))
    letters = []
    columns = ("topic", "partition", "offset", "key", "headers", "value")
    for row in raw.where(wanted).selectExpr(*columns, MOMENT.format("timestamp")).collect():
        refusal = by_origin[Origin(row["topic"], row["partition"], row["offset"])]
        letters.append(letter(row, refusal.error, refusal.place))
    return letters


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
