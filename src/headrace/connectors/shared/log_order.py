"""Rows brought to the tasks in the order of the log, those of one record one after the other."""

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

_TURN = "headrace_turn"


def sort_by_offset(batch: Batch, rows: DataFrame) -> DataFrame:
    """The columns of `rows`, then ORIGIN_COLUMNS. All rows of a partition are in one task, by offset.

    Rows of one record keep their order, where the task that made them had them in one.
    """
    if METADATA not in rows.columns:
        raise without_origin()
    return sorted_by_offset(batch, with_origin_columns(rows))


def sorted_by_offset(batch: Batch, frame: DataFrame) -> DataFrame:
    """The same for rows that have ORIGIN_COLUMNS already."""
    from pyspark.sql import functions as sql

    stays = stays_in_task(batch, frame)
    frame = frame.select("*", sql.monotonically_increasing_id().alias(_TURN))
    if not stays:
        frame = frame.repartition(max(1, len(batch.ranges)), *ORIGIN_COLUMNS[:2])
    # Also where no row moves: a function over a whole partition may hand its rows on in any order.
    return frame.sortWithinPartitions(*ORIGIN_COLUMNS, _TURN).drop(_TURN)


def with_origin_columns(rows: DataFrame) -> DataFrame:
    """The columns of `rows`, then ORIGIN_COLUMNS."""
    if taken := [name for name in rows.columns if name.lower().startswith("headrace_")]:
        raise ConfigError(f"the column name {taken[0]} is reserved by Headrace", hint="rename it in the transform")
    return rows.select("*", *origin_column_exprs(rows))


def without_origin() -> ConfigError:
    return ConfigError(
        f"the transform dropped {METADATA}, which tells what was written already", hint="keep it in the transform"
    )


def stays_in_task(batch: Batch, rows: DataFrame) -> bool:
    """Whether each row is in the task of its range already."""
    return task_alignment.tasks_match_ranges(rows, len(batch.ranges))


def group_by_record(batches: Iterator[Any], refusals: RejectedRows) -> Iterator[tuple[RecordId, list[dict[str, Any]]]]:
    """The rows of each record, from the Arrow batches of a task."""
    for origin, found in groupby(iter_rows(batches, refusals), key=lambda item: item[0]):
        if origin is None:
            raise ConfigError(
                f"the transform made rows whose {METADATA} is NULL: what was written already cannot be told",
                hint=f"keep {METADATA} as it is; an outer join leaves it NULL",
            )
        yield origin, [row for _, row in found]


def iter_rows(
    batches: Iterator[Any], refusals: RejectedRows, size: int = 1_000
) -> Iterator[tuple[RecordId | None, dict[str, Any]]]:
    """Row by row, each with the record it came from."""
    for batch in batches:
        for first in range(0, len(batch), size):
            yield from refusals.taken(batch.slice(first, size))
