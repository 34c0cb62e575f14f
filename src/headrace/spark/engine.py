"""The direct engine: a planned batch becomes the transformed rows of its ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from headrace.errors import ConfigError, HeadraceError
from headrace.spark import plan, session
from headrace.spark.direct import Reader
from headrace.spark.rows import bad_record, columns, decode
from headrace.tracebacks import short

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline import Pipeline
    from headrace.spark.rows import Decoded
    from headrace.types import Batch


class DirectEngine:
    """Made once per run; raises ConfigError for a schema or a transform that cannot work."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._transform = pipeline.transform
        self._format = pipeline.source.format
        self._names = columns(spark, self._format)
        source = pipeline.source
        self._reader = Reader(spark, source.bootstrap, source.options, group=f"headrace-{pipeline.name}")
        self._last: Decoded | None = None
        self._seen = False

    def rows(self, batch: Batch) -> DataFrame:
        self._last = decode(self._reader.rows(batch.ranges), self._format, self._names)
        rows = plan.apply(self._transform, self._last.rows)
        if not self._seen:
            # A transform that raised on the empty frame has not been looked at yet.
            plan.refuse_state(rows)
            self._seen = True
        return rows

    def dropped(self) -> int:
        return self._last.dropped() if self._last else 0

    def translated(self, error: Exception) -> Exception:
        if found := bad_record(error):
            return found
        if isinstance(error, AnalysisException):
            return ConfigError(f"Spark refuses the rows: {short(error)}", hint="change the transform")
        if not session.alive(self._spark):
            return HeadraceError(
                "the Spark process has gone; nothing is lost, the batch in hand is repeated at the next start",
                hint="start the pipeline again; for memory: --spark spark.driver.memory=4g",
            )
        return error
