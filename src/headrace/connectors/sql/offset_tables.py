"""State as rows of three tables, for all SQL stores.

headrace_offsets   one row per partition; `next_offset` is the next record to read
headrace_pipelines one row per pipeline: last batch, topic ids, the pending batch and the live run as JSON
headrace_history   the audit log

The caller holds a transaction that no other writer can enter: these functions compare and then set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from headrace.connectors.sql.own_tables import OwnTable
from headrace.core.state import AuditEntry, RunLease, State
from headrace.types import Batch, Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TABLES = (
    OwnTable(
        "headrace_offsets",
        """CREATE TABLE IF NOT EXISTS headrace_offsets (
        pipeline TEXT NOT NULL, topic TEXT NOT NULL, "partition" INTEGER NOT NULL, next_offset BIGINT NOT NULL,
        PRIMARY KEY (pipeline, topic, "partition"))""",
    ),
    OwnTable(
        "headrace_pipelines",
        """CREATE TABLE IF NOT EXISTS headrace_pipelines (
        pipeline TEXT PRIMARY KEY, last_batch BIGINT NOT NULL, topic_ids TEXT NOT NULL, pending TEXT, run TEXT)""",
    ),
    OwnTable(
        "headrace_history",
        """CREATE TABLE IF NOT EXISTS headrace_history (
        pipeline TEXT NOT NULL, number INTEGER NOT NULL, change TEXT NOT NULL, PRIMARY KEY (pipeline, number))""",
    ),
)

UPSERT_OFFSETS = """INSERT INTO headrace_offsets (pipeline, topic, "partition", next_offset) VALUES :rows
    ON CONFLICT (pipeline, topic, "partition") DO UPDATE SET next_offset = excluded.next_offset"""
UPSERT_PIPELINE = """INSERT INTO headrace_pipelines (pipeline, last_batch, topic_ids, pending, run)
    VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (pipeline) DO UPDATE SET last_batch = excluded.last_batch, topic_ids = excluded.topic_ids,
    pending = excluded.pending, run = excluded.run"""
APPEND_HISTORY = """INSERT INTO headrace_history (pipeline, number, change)
    SELECT ?, coalesce(max(number), 0) + 1, ? FROM headrace_history WHERE pipeline = ?"""

_EPOCH = ""
"""The key of the epoch among the topic ids, which is no valid topic name. Tables of earlier versions have no column for
the epoch, and a user who may write to them may not be allowed to alter them."""


class Cursor(Protocol):
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """The common interface of SQL drivers' connections, with `?` as the placeholder of a parameter."""

    def execute(self, query: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...


def read(connection: Connection, pipeline: str) -> State:
    offsets = connection.execute(
        'SELECT topic, "partition", next_offset FROM headrace_offsets WHERE pipeline = ?', [pipeline]
    ).fetchall()
    pipelines = connection.execute(
        "SELECT last_batch, topic_ids, pending, run FROM headrace_pipelines WHERE pipeline = ?", [pipeline]
    ).fetchall()
    last_batch, ids, pending, run = pipelines[0] if pipelines else (0, "{}", None, None)
    topic_ids = json.loads(ids)
    epoch = int(topic_ids.pop(_EPOCH, 0))
    progress = Progress(
        offsets={TopicPartition(topic, partition): offset for topic, partition, offset in offsets},
        pending=Batch.from_json(pending) if pending else None,
        topic_ids=topic_ids,
        last_batch=last_batch,
        epoch=epoch,
    )
    return State(progress, RunLease.from_json(run) if run else None)


def write(connection: Connection, pipeline: str, old: State, new: State, change: AuditEntry | None = None) -> None:
    """Change the stored state from `old` to `new`. Writes only rows that differ."""
    before, progress = old.progress.offsets, new.progress
    moved = {at: offset for at, offset in progress.offsets.items() if before.get(at) != offset}
    for chunk in _chunks(moved):
        rows = ", ".join(["(?, ?, ?, ?)"] * len(chunk))
        values = [value for at, offset in chunk for value in (pipeline, at.topic, at.partition, offset)]
        connection.execute(UPSERT_OFFSETS.replace(":rows", rows), values)
    connection.execute(
        UPSERT_PIPELINE,
        [
            pipeline,
            progress.last_batch,
            json.dumps({**progress.topic_ids, **({_EPOCH: str(progress.epoch)} if progress.epoch else {})}),
            progress.pending.to_json() if progress.pending else None,
            new.run.to_json() if new.run else None,
        ],
    )
    if change is not None:
        connection.execute(APPEND_HISTORY, [pipeline, change.to_json(), pipeline])


def swap(connection: Connection, pipeline: str, old: State, new: State, change: AuditEntry | None) -> bool:
    """`write`, if the stored state is still `old`."""
    if read(connection, pipeline) != old:
        return False
    write(connection, pipeline, old, new, change)
    return True


def history(connection: Connection, pipeline: str) -> list[AuditEntry]:
    rows = connection.execute(
        "SELECT change FROM headrace_history WHERE pipeline = ? ORDER BY number", [pipeline]
    ).fetchall()
    return [AuditEntry.from_json(text) for (text,) in rows]


def _chunks(offsets: Mapping[TopicPartition, int], size: int = 200) -> Iterator[Sequence[tuple[TopicPartition, int]]]:
    """Chunks of rows for one statement: a statement per row is slow in DuckDB; one for all exceeds SQLite's limit."""
    items = list(offsets.items())
    for first in range(0, len(items), size):
        yield items[first : first + size]
