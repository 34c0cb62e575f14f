"""DDL strings as Spark reads them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql.types import StructType


@lru_cache(64)
def row(ddl: str) -> Any:
    """The type of a row with these columns, as the JSON of a schema has it. Decoder has looked at `ddl` before."""
    return StructType.fromDDL(ddl).jsonValue()
