"""Rows to a function on the executors, as Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame


def map_in_arrow(rows: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> DataFrame:
    """`rows.mapInArrow(function, schema)`, which asks for pandas and does not need it."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    from headrace.spark.sql import quoted

    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    columns = [rows[quoted(name)] for name in rows.columns]
    made: Any = UserDefinedFunction(function, StructType.fromDDL(schema), evalType=kind)(*columns)
    return DataFrame(rows._jdf.mapInArrow(made._jc, False, None), rows.sparkSession)
