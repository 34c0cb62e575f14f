"""Sorts rows within tasks in the order of the log, with the rows of one record together."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.spark import task_alignment
from headrace.spark.origin_columns import ORIGIN_COLUMNS, origin_column_exprs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from headrace.connectors.shared.rejected_rows import RejectedRows
    from headrace.core.dead_letters import RecordId
    from headrace.types import Batch

_SEQUENCE = "headrace_sequence"


def sort_by_offset(batch: Batch, rows: DataFrame) -> DataFrame:
    """The columns of `rows`, then ORIGIN_COLUMNS. All rows of a partition are in one task, sorted by offset.

    Rows of one record keep the order in which their task produced them.
    """
    if METADATA not in rows.columns:
        raise origin_required_error()
    return sort_by_origin_columns(batch, with_origin_columns(rows))


def sort_by_origin_columns(batch: Batch, frame: DataFrame) -> DataFrame:
    """As `sort_by_offset`, for rows that already have ORIGIN_COLUMNS."""
    from pyspark.sql import functions as sql

    stays = stays_in_task(batch, frame)
    frame = frame.select("*", sql.monotonically_increasing_id().alias(_SEQUENCE))
    if not stays:
        frame = frame.repartition(max(1, len(batch.ranges)), *ORIGIN_COLUMNS[:2])
    # Sort even without a shuffle: a function over a whole partition may return its rows in any order.
    return frame.sortWithinPartitions(*ORIGIN_COLUMNS, _SEQUENCE).drop(_SEQUENCE)


def with_origin_columns(rows: DataFrame) -> DataFrame:
    """The columns of `rows`, then ORIGIN_COLUMNS."""
    if reserved := [name for name in rows.columns if name.lower().startswith("headrace_")]:
        raise ConfigError(f"the column name {reserved[0]} is reserved by Headrace", hint="rename it in the transform")
    return rows.select("*", *origin_column_exprs(rows))


def origin_required_error() -> ConfigError:
    return ConfigError(
        f"the transform dropped {METADATA}, by which the sink recognises written rows",
        hint="keep it in the transform",
    )


def stays_in_task(batch: Batch, rows: DataFrame) -> bool:
    """Whether each row is already in the task of its range."""
    return task_alignment.tasks_match_ranges(rows, len(batch.ranges))


def group_by_record(batches: Iterator[Any], rejected: RejectedRows) -> Iterator[tuple[RecordId, list[dict[str, Any]]]]:
    """The rows of each record, from the Arrow batches of a task."""
    for origin, group in groupby(iter_rows(batches, rejected), key=lambda item: item[0]):
        if origin is None:
            raise ConfigError(
                f"the transform made rows whose {METADATA} is NULL: the sink recognises written rows by it",
                hint=f"keep {METADATA} as it is; an outer join leaves it NULL",
            )
        yield origin, [row for _, row in group]


def iter_rows(
    batches: Iterator[Any], rejected: RejectedRows, size: int = 1_000
) -> Iterator[tuple[RecordId | None, dict[str, Any]]]:
    """Each row with the id of the record that it came from."""
    for batch in batches:
        for first in range(0, len(batch), size):
            yield from rejected.accept(batch.slice(first, size))
