"""Runs the tasks of a batch on the executors; each returns a report to the driver.

An error of a task is in its report instead of being raised. So Spark does not repeat a task that cannot succeed, the
reason is not lost in a stack trace, and the other tasks finish.
"""

from __future__ import annotations

import atexit
import json
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.core import topic_check
from headrace.core.dead_letters import RecordId
from headrace.errors import HeadraceError, RetriableError
from headrace.spark.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from pyspark.sql import DataFrame

WORKER_CACHE: dict[Hashable, tuple[Any, Callable[[Any], object]]] = {}
"""Clients of this Python worker. Spark has one worker per running task, which bounds their number."""
_MAX_CACHED = 32  # a client has threads and sockets
_retries_allowed: ContextVar[bool] = ContextVar("headrace_task_retries_allowed", default=True)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one task. `attempt` distinguishes its rows from those of other attempts, if a sink needs that."""

    rows: int = 0
    attempt: int = 0
    refused: Sequence[tuple[RecordId, str]] = ()
    error: tuple[str, str, str | None] | None = None

    def to_json(self) -> str:
        return json.dumps([self.rows, self.attempt, [[*origin, reason] for origin, reason in self.refused], self.error])

    @classmethod
    def from_json(cls, text: str) -> Report:
        rows, attempt, refused, error = json.loads(text)
        return cls(rows, attempt, [(RecordId(*origin), reason) for *origin, reason in refused], error and tuple(error))

    @classmethod
    def from_error(cls, error: HeadraceError) -> Report:
        """A report with the nearest class of `headrace.errors`: the driver may not be able to import a subclass."""
        kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
        return cls(error=(kind.__name__, str(error), getattr(error, "hint", None)))


@contextmanager
def retries_allowed(allowed: bool) -> Iterator[None]:
    """Within the block, whether a second attempt of a task may store rows.

    At-most-once forbids it: no setting keeps Spark from repeating the tasks of a lost host.
    """
    token = _retries_allowed.set(allowed)
    try:
        yield
    finally:
        _retries_allowed.reset(token)


def run(rows: DataFrame, task: Callable[[Iterator[Any]], Report], *, verify_pieces: bool = True) -> list[Report]:
    """Run `task` once per partition of `rows`, on the executors, and return the reports.

    `task` gets its rows as Arrow batches. A HeadraceError that it raises becomes its report; the first one is raised
    here after all tasks have finished. Rows that it leaves unread are drained.

    With `verify_pieces` the topic ids are compared before the task gets each Arrow batch, which it may store at once.
    A task that stores nothing before it has read all rows compares them itself, or the driver does.
    """
    check = topic_check.current() if verify_pieces else None
    retries_allowed = _retries_allowed.get()

    def in_worker(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        def checked_task(pieces: Iterator[Any]) -> Report:
            if not retries_allowed and _is_retry():
                raise RetriableError("Spark lost a task that may have stored rows: at-most-once repeats none of them")
            return task(pieces if check is None else _VerifiedBatches(pieces, check))

        report = report_of(checked_task, batches)
        yield pa.RecordBatch.from_pydict({"report": [report.to_json()]})

    reports = [Report.from_json(row["report"]) for row in map_in_arrow(rows, in_worker, "report STRING").collect()]
    for report in reports:
        if report.error is not None:
            kind, message, hint = report.error
            raise getattr(errors, kind)(message, hint=hint)
    return reports


def report_of(task: Callable[[Iterator[Any]], Report], batches: Iterator[Any]) -> Report:
    """Run `task` and return its report, also if it raises a HeadraceError. Drains the rows that it leaves unread."""
    try:
        return task(batches)
    except HeadraceError as error:
        return Report.from_error(error)
    finally:
        for _ in batches:  # Spark ends a Python worker whose task leaves input unread
            pass


def _is_retry() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


class _VerifiedBatches:
    """Arrow batches, each returned only after the topic ids were compared with the planned ones."""

    def __init__(self, batches: Iterator[Any], check: Callable[[], None]) -> None:
        self._batches = batches
        self._check: Callable[[], None] | None = check

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._check is not None:
            check, self._check = self._check, None  # a task that fails reads the rest of its input unchecked
            check()
            self._check = check
        return batch


def map_in_arrow(rows: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> DataFrame:
    """`rows.mapInArrow(function, schema)`, without its unnecessary requirement of pandas."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    eval_type = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    columns = [rows[quoted(name)] for name in rows.columns]
    call: Any = UserDefinedFunction(function, StructType.fromDDL(schema), evalType=eval_type)(*columns)
    return DataFrame(rows._jdf.mapInArrow(call._jc, False, None), rows.sparkSession)


def worker_cached(
    key: Hashable, create: Callable[[], Any], close: Callable[[Any], object] = lambda client: client.close()
) -> Any:
    """The client of this process under `key`, created at the first call: connecting is expensive.

    `close` is called when it is evicted, or when the process ends.
    """
    entry = WORKER_CACHE.pop(key, None) or (create(), close)
    WORKER_CACHE[key] = entry  # least recently used first
    while len(WORKER_CACHE) > _MAX_CACHED:
        evict(next(iter(WORKER_CACHE)))
    return entry[0]


def evict(key: Hashable) -> None:
    """Close the client under `key`, if there is one: the next call of `worker_cached` creates another."""
    if (entry := WORKER_CACHE.pop(key, None)) is not None:
        client, close = entry
        with suppress(Exception):  # a lost connection may raise anything
            close(client)


@atexit.register
def _close_worker_cache() -> None:
    for key in list(WORKER_CACHE):
        evict(key)
