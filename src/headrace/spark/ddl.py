"""Converts Spark DDL strings to types and to JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql.types import StructType


@lru_cache(64)
def row_type(ddl: str) -> StructType:
    """The type of a row with these columns; `ddl` is known to be valid."""
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


@lru_cache(64)
def row(ddl: str) -> Any:
    """The same in Spark's JSON notation."""
    return row_type(ddl).jsonValue()


def type_name(json_type: Any) -> str:
    """The SQL name of a type without fields, given in Spark's JSON notation: BIGINT, DECIMAL(10,2)."""
    schema = StructType.fromJson({"fields": [{"name": "f", "type": json_type, "nullable": True, "metadata": {}}]})
    return schema["f"].dataType.simpleString().upper()
