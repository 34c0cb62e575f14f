"""Progress as rows of two plain tables, for every store that speaks SQL.

headrace_offsets   one row per partition; `next_offset` is the next record to read
headrace_pipelines one row per pipeline: last batch, topic ids, and the pending batch as JSON

The caller holds a transaction that no other writer can enter: these functions compare and then set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from headrace.stores.base import refuse_conflict
from headrace.types import Batch, Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.types import Range

TABLES = (
    """CREATE TABLE IF NOT EXISTS headrace_offsets (
        pipeline TEXT NOT NULL, topic TEXT NOT NULL, "partition" INTEGER NOT NULL, next_offset BIGINT NOT NULL,
        PRIMARY KEY (pipeline, topic, "partition"))""",
    """CREATE TABLE IF NOT EXISTS headrace_pipelines (
        pipeline TEXT PRIMARY KEY, last_batch BIGINT NOT NULL, topic_ids TEXT NOT NULL, pending TEXT)""",
)

UPSERT = """INSERT INTO headrace_offsets (pipeline, topic, "partition", next_offset) VALUES :rows
    ON CONFLICT (pipeline, topic, "partition") DO UPDATE SET next_offset = excluded.next_offset"""


class Cursor(Protocol):
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """What SQLite's and DuckDB's connections have in common."""

    def execute(self, query: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...


def load(connection: Connection, pipeline: str) -> Progress:
    offsets = connection.execute(
        'SELECT topic, "partition", next_offset FROM headrace_offsets WHERE pipeline = ?', [pipeline]
    ).fetchall()
    state = connection.execute(
        "SELECT last_batch, topic_ids, pending FROM headrace_pipelines WHERE pipeline = ?", [pipeline]
    ).fetchall()
    last_batch, topic_ids, pending = state[0] if state else (0, "{}", None)
    return Progress(
        offsets={TopicPartition(topic, partition): offset for topic, partition, offset in offsets},
        pending=Batch.from_json(pending) if pending else None,
        topic_ids=json.loads(topic_ids),
        last_batch=last_batch,
    )


def begin(connection: Connection, pipeline: str, batch: Batch) -> None:
    progress = load(connection, pipeline)
    refuse_conflict(progress, batch)
    _save(connection, pipeline, progress, batch)


def commit(connection: Connection, pipeline: str, batch: Batch) -> None:
    progress = load(connection, pipeline)
    refuse_conflict(progress, batch)
    for ranges in _chunks(batch.ranges):
        rows = ", ".join(["(?, ?, ?, ?)"] * len(ranges))
        connection.execute(
            UPSERT.replace(":rows", rows),
            [value for r in ranges for value in (pipeline, r.at.topic, r.at.partition, r.until)],
        )
    _save(connection, pipeline, progress.advanced(batch), None)


def _chunks(ranges: Sequence[Range], size: int = 200) -> Iterator[Sequence[Range]]:
    """One statement for many rows: a statement each is slow in DuckDB, and all at once passes SQLite's limit."""
    for first in range(0, len(ranges), size):
        yield ranges[first : first + size]


def _save(connection: Connection, pipeline: str, progress: Progress, pending: Batch | None) -> None:
    connection.execute(
        "INSERT INTO headrace_pipelines (pipeline, last_batch, topic_ids, pending) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (pipeline) DO UPDATE SET last_batch = excluded.last_batch,"
        " topic_ids = excluded.topic_ids, pending = excluded.pending",
        [
            pipeline,
            progress.last_batch,
            json.dumps(dict(progress.topic_ids)),
            pending.to_json() if pending else None,
        ],
    )
