"""DDL strings as Spark reads them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql.types import StructType


@lru_cache(64)
def row_type(ddl: str) -> StructType:
    """The type of a row with these columns; Decoder has looked at `ddl` before."""
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


@lru_cache(64)
def row(ddl: str) -> Any:
    """The same as the JSON of a schema has it."""
    return row_type(ddl).jsonValue()


def type_name(kind: Any) -> str:
    """A type without fields, given as the JSON of a schema has it, as people write it: BIGINT, DECIMAL(10,2)."""
    made = StructType.fromJson({"fields": [{"name": "f", "type": kind, "nullable": True, "metadata": {}}]})
    return made["f"].dataType.simpleString().upper()
