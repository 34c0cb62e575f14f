"""The columns with the record that a row came from, and schemas without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.sink import METADATA

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ORIGIN_COLUMNS = ("headrace_topic", "headrace_partition", "headrace_row_offset")
"""The record that a row came from. Not stored: needed while the sink may still reject the row."""


def origin_column_exprs(rows: DataFrame) -> list[Expression]:
    """The origin of each row; NULL if the transform dropped `_kafka`."""
    from pyspark.sql import functions as sql

    if METADATA in rows.columns:
        columns = [sql.col(f"{METADATA}.{name}") for name in ("topic", "partition", "offset")]
    else:
        columns = [sql.lit(None).cast(data_type) for data_type in ("string", "int", "bigint")]
    return [column.alias(name) for name, column in zip(ORIGIN_COLUMNS, columns, strict=True)]


def stored_schema(schema: StructType) -> StructType:
    """The columns to store: all but `_kafka`."""
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != METADATA])
