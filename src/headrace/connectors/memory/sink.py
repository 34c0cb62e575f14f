"""Rows in a list of this process, for tests and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core import topic_check
from headrace.core.sink import Sink, without_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.types import Batch


class Memory(Sink):
    """Appends every row, as a dictionary, to `rows`. A repeated batch appends its rows twice, on purpose."""

    needs_one_task_per_partition = False

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    @property
    def identity(self) -> str:
        return "sinks.Memory()"

    def write(self, batch: Batch, rows: DataFrame) -> None:
        read = without_metadata(rows).toArrow().to_pylist()
        topic_check.verify()
        self.rows += read
