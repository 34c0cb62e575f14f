"""Columns that say which record a row came from; and a schema without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.sink import METADATA

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PLACE = ("headrace_topic", "headrace_partition", "headrace_row_offset")
"""Columns beside those that are stored, while a row may still be refused: the record it came from."""


def origin_column_exprs(rows: DataFrame) -> list[Expression]:
    """Where each row came from, NULL where the transform does not say."""
    from pyspark.sql import functions as sql

    if METADATA in rows.columns:
        found = [sql.col(f"{METADATA}.{name}") for name in ("topic", "partition", "offset")]
    else:
        found = [sql.lit(None).cast(kind) for kind in ("string", "int", "bigint")]
    return [column.alias(name) for name, column in zip(PLACE, found, strict=True)]


def stored_schema(schema: StructType) -> StructType:
    """The columns that belong into the target, of rows with such a schema."""
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != METADATA])
