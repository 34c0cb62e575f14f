"""Reads what Spark knows of the query that calls a `foreachBatch` function: id, output mode, checkpoint, offset log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.engine.structured.offset_log import content_hash
from headrace.engine.structured.query_batch import QueryBatch
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RunningQuery:
    """A query in the JVM. `id` is stored in its checkpoint; `run` is another one after each start."""

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self.id = str(execution.id().toString())
        self.run = str(execution.runId().toString())

    @classmethod
    def of(cls, rows: DataFrame) -> RunningQuery:
        """The query that calls `foreachBatch` with these rows."""
        session: Any = getattr(rows.sparkSession, "_jsparkSession", None)
        if session is None:
            raise ConfigError("expected a DataFrame of classic PySpark, got one of Spark Connect")
        context: Any = rows.sparkSession.sparkContext
        query = context.getLocalProperty("sql.streaming.queryId")
        # The session of a batch is a clone, whose own `streams` are empty; the shared state has all queries.
        found = query and session.sharedState().activeStreamingQueries().get(
            context._jvm.java.util.UUID.fromString(query)
        )
        if not found:
            raise ConfigError(
                "expected a call by foreachBatch, got one outside a streaming query",
                hint='df.writeStream.foreachBatch(hr.exactly_once(sink, name="clicks"))',
            )
        return cls(found)

    @property
    def output_mode(self) -> str:
        """append, update or complete."""
        return str(self._execution.outputMode().toString()).lower()

    @property
    def checkpoint(self) -> str:
        """The path of its checkpoint, as Spark writes it."""
        return str(self._execution.resolvedCheckpointRoot())

    @property
    def active(self) -> bool:
        return bool(self._execution.isActive())

    def wait(self) -> None:
        """Return when the query has ended, also if it failed."""
        try:
            self._execution.awaitTermination()
        except Exception:
            return  # the error of the query, or the end of the JVM

    def batch(self, name: str, number: int) -> QueryBatch:
        """Batch `number`. Spark writes its entry in the offset log before it calls `foreachBatch`."""
        offsets = self._execution.offsetLog().get(number).get().offsets()
        found = [offsets.apply(index) for index in range(offsets.size())]
        texts = [None if offset.isEmpty() else str(offset.get().json()) for offset in found]
        return QueryBatch(name, self.id, number, content_hash(texts))
