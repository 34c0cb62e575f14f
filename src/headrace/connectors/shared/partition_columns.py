"""Checks the columns that partition a dataset into directories. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.support.validation import column_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

BATCH = "headrace_batch"
"""The partition column with the batch of a row, as readers of a folder or table see it."""

_PLAIN = ("string", "varchar", "char", "boolean", "byte", "tinyint", "short", "smallint", "integer", "int", "long")
_TYPES = frozenset({*_PLAIN, "bigint", "date", "decimal", "timestamp", "timestamp_ntz"})


def listed(partition_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """The user's `partition_by` as a tuple. ConfigError for errors that do not depend on the rows."""
    if partition_by is None:
        return ()
    names = column_names("partition_by", partition_by, hint='partition_by="day"')
    if twice := repeated(names):
        raise ConfigError(f"partition_by names {twice} twice", hint="capitals make no difference to Spark")
    if any(name.lower() == BATCH for name in names):
        raise ConfigError(f"partition_by: {BATCH} is a name of ours", hint="name a column of the rows")
    return names


def check(schema: StructType, partition_by: Sequence[str], target: str) -> None:
    """ConfigError unless rows of `schema`, which excludes the origin, can be partitioned by these columns."""
    columns = {field.name: field.dataType.typeName() for field in schema.fields}
    there = ", ".join(columns)
    if twice := repeated(columns):
        raise ConfigError(
            f"{target}: the rows have {twice} twice, as capitals make no difference to Spark: {there}",
            hint="rename one of them in the transform",
        )
    if reserved := [name for name in columns if name.lower() == BATCH]:
        raise ConfigError(
            f"{target}: the rows have a column {reserved[0]}, which is a name of ours",
            hint=f"rows.withColumnRenamed({reserved[0]!r}, …)",
        )
    for name in partition_by:
        if name not in columns:
            near = [column for column in columns if column.lower() == name.lower()]
            raise ConfigError(
                f"{target}: partition_by names {name}, which the rows do not have: {there}",
                hint=f"partition_by={near[0]!r}" if near else "name a column that the transform returns",
            )
        if columns[name] not in _TYPES:
            raise ConfigError(
                f"{target}: partition_by names {name}, and {columns[name]} makes no directory names",
                hint="partition by text, whole numbers, dates or booleans",
            )
    if partition_by and len(partition_by) == len(columns):
        raise ConfigError(
            f"{target}: partition_by names every column, and nothing is left for the files", hint="leave one out"
        )


def repeated(names: Sequence[str] | dict[str, str]) -> str | None:
    """A name that occurs twice, ignoring case."""
    counts = Counter(name.lower() for name in names)
    return next((name for name, count in counts.items() if count > 1), None)
