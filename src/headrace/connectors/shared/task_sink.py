"""Sinks that the tasks on the executors write to: rows that they refuse come back in their reports."""

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
    def _write_rows(self, batch: Batch, rows: DataFrame, most: int | None) -> list[Report]:
        """The reports of the tasks, when all rows are durable. `most` of them may be refused; None: not one."""

    def write(self, batch: Batch, rows: DataFrame) -> None:
        self._write_rows(batch, rows, most=None)

    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        reports = self._write_rows(batch, rows, most=dead_letters.limit)
        place = self.identity or type(self).__name__
        dead_letters.reject([RejectedRow(origin, why, place) for r in reports for origin, why in r.refused])
        dead_letters.flush()
