"""What a Delta log records about a Parquet file: its size, its partition, and statistics that readers prune by."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PARTITION_TYPES = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "string", "date"})
"""Types whose text all readers parse in the same way; readers disagree on partition values of other types."""
_TYPES_WITHOUT_BOUNDS = ("array", "map", "binary")
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file in the table's folder, as its footer describes it."""

    path: str
    size: int
    records: int
    partition: Mapping[str, str | None]
    nulls: Mapping[str, int]
    low: Mapping[str, Any]
    high: Mapping[str, Any]

    @property
    def stats(self) -> str:
        stats = {"numRecords": self.records, "nullCount": self.nulls}
        return json.dumps({**stats, "minValues": self.low, "maxValues": self.high} if self.low else stats)

    def may_be_null(self, column: str) -> bool:
        """Whether a row has or may have NULL in this column."""
        if column in self.partition:
            return self.partition[column] is None
        return self.nulls.get(column, 1) > 0


def encode_partition_columns(rows: DataFrame, partition_by: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """The rows with each partition column replaced by one whose values are safe in a path, and the new names.

    The values are hexadecimal: readers disagree on how the log escapes special characters in a path, and Spark's folder
    names do not distinguish an empty text from NULL. Readers take the partition value from the log, not from the path.
    """
    from headrace.spark.sql import quoted, verbatim

    names = [f"p{number}" for number in range(len(partition_by))]
    encoded = [
        f"concat('x', hex(CAST({quoted(column)} AS STRING))) AS {name}"
        for name, column in zip(names, partition_by, strict=True)
    ]
    others = [quoted(name) for name in rows.columns if name not in partition_by]
    if not encoded:
        return rows, []
    with verbatim(rows.sparkSession):
        return rows.selectExpr(*others, *encoded), names


def decode_partition_values(path: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    """The partition values of a folder of rows with encoded partition columns. Delta reads an empty text as NULL."""
    parts = dict(part.split("=", 1) for part in path.split("/") if "=" in part)
    raw = [parts[f"p{number}"] for number in range(len(partition_by))]
    texts = [None if value == _NULL else bytes.fromhex(value[1:]).decode() or None for value in raw]
    return dict(zip(partition_by, texts, strict=True))


def describe_file(path: str, size: int, footer: Any, table: StructType, partition_by: Sequence[str]) -> File:
    """Describe a file by its footer, with the bounds of every column that readers prune by, or of none.

    Bounds of some columns would also be valid. But if a file has any bounds, deltalake's Arrow dataset treats a missing
    bound as one that excludes every row (https://github.com/delta-io/delta-rs/issues/3173).
    """
    columns = _statistics(footer)
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[Any, Any] | None] = {}
    for field in table.fields:
        kind = field.dataType.simpleString()
        if field.name in partition_by or kind.startswith(_TYPES_WITHOUT_BOUNDS):
            continue
        if field.name not in columns and not kind.startswith("struct"):
            nulls[field.name] = footer.num_rows  # a column that another writer added to the table: NULL in this file
            continue
        groups = columns.get(field.name, [])
        known = bool(groups) and all(group is not None and group.has_null_count for group in groups)
        if known:
            nulls[field.name] = sum(group.null_count for group in groups)
        if nulls.get(field.name) != footer.num_rows:
            bounds[field.name] = _bounds(kind, groups) if known else None
    known_bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    if len(known_bounds) < len(bounds):
        known_bounds = {}
    low, high = ({name: bound[side] for name, bound in known_bounds.items()} for side in (0, 1))
    return File(path, size, footer.num_rows, decode_partition_values(path, partition_by), nulls, low, high)


def _statistics(footer: Any) -> dict[str, list[Any]]:
    """The statistics of each row group, by column name; none for nested columns and for names with a dot."""
    statistics: dict[str, list[Any]] = {}
    for position in range(footer.num_columns):
        name, dot, _ = footer.schema.column(position).path.partition(".")
        groups = [] if dot else [footer.row_group(n).column(position).statistics for n in range(footer.num_row_groups)]
        statistics[name] = groups
    return statistics


def _bounds(kind: str, groups: Sequence[Any]) -> tuple[Any, Any] | None:
    convert = _BOUNDS_CONVERTERS.get(kind)
    filled = [group for group in groups if group.num_values > 0]
    if convert is None or not all(group.has_min_max for group in filled):
        return None
    try:
        pairs = [convert(group.min_raw, group.max_raw) for group in filled]
    except (OverflowError, ValueError):  # a year after 9999, NaN, or a text that is not UTF-8
        return None
    return min(low for low, _ in pairs), max(high for _, high in pairs)


def _number_bounds(low: Any, high: Any) -> tuple[Any, Any]:
    return low, high


def _float_bounds(low: float, high: float) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)):  # NaN has no order, and JSON has no infinity
        raise ValueError("not finite")
    return low or -0.0, high or 0.0


def _string_bounds(low: bytes, high: bytes) -> tuple[str, str]:
    return low.decode(), high.decode()


def _date_bounds(low: int, high: int) -> tuple[str, str]:
    epoch = date(1970, 1, 1)
    return (epoch + timedelta(days=low)).isoformat(), (epoch + timedelta(days=high)).isoformat()


def _timestamp_bounds(low: int, high: int) -> tuple[str, str]:
    # Every reader parses milliseconds. Round outwards, so that each row is within the bounds of its file.
    return _format_timestamp(low // 1000), _format_timestamp(-(-high // 1000))


def _format_timestamp(milliseconds: int) -> str:
    timestamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Without decimals, which some JSON readers round, and timestamps without a zone, which some readers assign to a zone.
_BOUNDS_CONVERTERS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "boolean": _number_bounds,
    "float": _float_bounds,
    "double": _float_bounds,
    "tinyint": _number_bounds,
    "smallint": _number_bounds,
    "int": _number_bounds,
    "bigint": _number_bounds,
    "string": _string_bounds,
    "date": _date_bounds,
    "timestamp": _timestamp_bounds,
}
