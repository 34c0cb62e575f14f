"""The console sink: prints rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core import topic_check
from headrace.core.sink import Sink, without_metadata
from headrace.errors import ConfigError
from headrace.text import counted, printable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.types import Batch


class Console(Sink):
    """Prints the first `limit` rows of each batch to standard output."""

    needs_one_task_per_partition = False
    reads_all_rows = False

    def __init__(self, limit: int = 20) -> None:
        if not isinstance(limit, int) or limit < 1:
            raise ConfigError(f"Console: expected limit= of at least 1, got {limit!r}", hint="sinks.Console(limit=20)")
        self._limit = limit

    @property
    def identity(self) -> str:
        return f"sinks.Console(limit={self._limit})"

    def write(self, batch: Batch, rows: DataFrame) -> None:
        shown = without_metadata(rows).limit(self._limit).toArrow().to_pylist()
        topic_check.verify()
        print(f"batch {batch.id}: {counted(len(shown), 'row')} shown")
        for row in shown:
            print("  " + printable(", ".join(f"{name}={value!r}" for name, value in row.items())))
