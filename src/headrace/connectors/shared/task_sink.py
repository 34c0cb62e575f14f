"""The base class of sinks whose tasks write on the executors and return rejected rows in their reports."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from headrace.core.dead_letters import RejectedRow
from headrace.core.sink import RowRejectingSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.core.dead_letters import DeadLetterBatch
    from headrace.spark.tasks import Report
    from headrace.types import Batch


class TaskSink(RowRejectingSink):
    @abstractmethod
    def _write_rows(self, batch: Batch, rows: DataFrame, limit: int | None) -> list[Report]:
        """Return the tasks' reports when all rows are durable. `limit` rows may be rejected; None: none."""

    def write(self, batch: Batch, rows: DataFrame) -> None:
        self._write_rows(batch, rows, limit=None)

    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        reports = self._write_rows(batch, rows, limit=dead_letters.limit)
        place = self.identity or type(self).__name__
        dead_letters.reject(
            [RejectedRow(origin, reason, place) for report in reports for origin, reason in report.refused]
        )
        dead_letters.flush()
