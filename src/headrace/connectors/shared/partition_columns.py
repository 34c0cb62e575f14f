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


def parse_partition_by(partition_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """The user's `partition_by` as a tuple. ConfigError for errors that do not depend on the rows."""
    if partition_by is None:
        return ()
    names = column_names("partition_by", partition_by, hint='partition_by="day"')
    if duplicate := find_duplicate(names):
        raise ConfigError(
            f"expected each column once in partition_by, got {duplicate} twice", hint="Spark ignores case in names"
        )
    if any(name.lower() == BATCH for name in names):
        raise ConfigError(f"partition_by: {BATCH} is reserved by Headrace", hint="name a column of the rows")
    return names


def check(schema: StructType, partition_by: Sequence[str], target: str) -> None:
    """ConfigError unless rows of `schema`, which excludes the origin, can be partitioned by these columns."""
    columns = {field.name: field.dataType.typeName() for field in schema.fields}
    shown = ", ".join(columns)
    if duplicate := find_duplicate(columns):
        raise ConfigError(
            f"{target}: the rows have two columns named {duplicate} (Spark ignores case): {shown}",
            hint="rename one of them in the transform",
        )
    if reserved := [name for name in columns if name.lower() == BATCH]:
        raise ConfigError(
            f"{target}: the rows have a column {reserved[0]}, which is reserved by Headrace",
            hint=f"rows.withColumnRenamed({reserved[0]!r}, …)",
        )
    for name in partition_by:
        if name not in columns:
            similar = [column for column in columns if column.lower() == name.lower()]
            raise ConfigError(
                f"{target}: partition_by names {name}, which the rows do not have: {shown}",
                hint=f"partition_by={similar[0]!r}" if similar else "name a column that the transform returns",
            )
        if columns[name] not in _TYPES:
            raise ConfigError(
                f"{target}: partition_by names {name}, but the type {columns[name]} cannot be used in directory names",
                hint="partition by text, whole numbers, dates or booleans",
            )
    if partition_by and len(partition_by) == len(columns):
        raise ConfigError(
            f"{target}: partition_by names every column, and nothing is left for the files", hint="leave one out"
        )


def find_duplicate(names: Sequence[str] | dict[str, str]) -> str | None:
    """A name that occurs twice, ignoring case."""
    counts = Counter(name.lower() for name in names)
    return next((name for name, count in counts.items() if count > 1), None)
