"""Passes rows to a function on the executors, as Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame


def map_in_arrow(rows: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> DataFrame:
    """`rows.mapInArrow(function, schema)`, which requires pandas without need."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    from headrace.spark.sql import quoted

    eval_type = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    columns = [rows[quoted(name)] for name in rows.columns]
    call: Any = UserDefinedFunction(function, StructType.fromDDL(schema), evalType=eval_type)(*columns)
    return DataFrame(rows._jdf.mapInArrow(call._jc, False, None), rows.sparkSession)
