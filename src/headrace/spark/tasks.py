"""What the tasks of a batch tell the driver.

A task never raises what it can say: its report does, so that Spark neither repeats what cannot succeed nor buries the
reason, and the other tasks finish.
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
from headrace.spark.arrow import map_in_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from pyspark.sql import DataFrame

KEPT: dict[Hashable, tuple[Any, Callable[[Any], object]]] = {}
"""One of each per Python worker, and Spark has one of those per task that runs: that is the bound."""
_MOST_KEPT = 32  # a client has threads and sockets
_repeats: ContextVar[bool] = ContextVar("headrace_task_repeats", default=True)


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one task. `attempt` tells its rows from those of other attempts, where a sink needs that."""

    rows: int = 0
    attempt: int = 0
    refused: Sequence[tuple[RecordId, str]] = ()
    error: tuple[str, str, str | None] | None = None

    def to_json(self) -> str:
        return json.dumps([self.rows, self.attempt, [[*origin, why] for origin, why in self.refused], self.error])

    @classmethod
    def from_json(cls, text: str) -> Report:
        rows, attempt, refused, error = json.loads(text)
        return cls(rows, attempt, [(RecordId(*origin), why) for *origin, why in refused], error and tuple(error))

    @classmethod
    def from_error(cls, error: HeadraceError) -> Report:
        """Names the nearest class of `headrace.errors`: the driver may not know a user's subclass."""
        kind = next(known for known in type(error).__mro__ if known.__module__ == errors.__name__)
        return cls(error=(kind.__name__, str(error), getattr(error, "hint", None)))


@contextmanager
def repeating(repeats: bool) -> Iterator[None]:
    """Within it, whether a task may run once more after it was lost: where not, its second attempt stores nothing.

    For at-most-once. No setting keeps Spark from repeating the tasks of a host that was lost.
    """
    token = _repeats.set(repeats)
    try:
        yield
    finally:
        _repeats.reset(token)


def run(rows: DataFrame, task: Callable[[Iterator[Any]], Report], *, verify_pieces: bool = True) -> list[Report]:
    """Run `task` once per partition of `rows`, on the executors, and return the reports.

    `task` gets its rows as Arrow batches. It may raise, and it may leave rows unread: a HeadraceError becomes its
    report, so that the other tasks finish, and the first one is raised here; the rest of the input is drained.

    With `verify_pieces` the topic ids are compared before each Arrow batch is handed to the task, which may store it
    at once. A task that stores nothing before it has read all compares them itself, or the driver does.
    """
    check = topic_check.current() if verify_pieces else None
    repeats = _repeats.get()

    def in_worker(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        def repeatable(pieces: Iterator[Any]) -> Report:
            if not repeats and _attempted_before():
                raise RetriableError("Spark lost a task that may have stored rows: at-most-once repeats none of them")
            return task(pieces if check is None else _Verified(pieces, check))

        report = report_of(repeatable, batches)
        yield pa.RecordBatch.from_pydict({"report": [report.to_json()]})

    reports = [Report.from_json(row["report"]) for row in map_in_arrow(rows, in_worker, "report STRING").collect()]
    for report in reports:
        if report.error is not None:
            kind, message, hint = report.error
            raise getattr(errors, kind)(message, hint=hint)
    return reports


def report_of(task: Callable[[Iterator[Any]], Report], batches: Iterator[Any]) -> Report:
    """The report of `task` on these rows, also where it raises a HeadraceError. Reads what the task leaves unread."""
    try:
        return task(batches)
    except HeadraceError as error:
        return Report.from_error(error)
    finally:
        for _ in batches:  # Spark ends a Python worker whose task leaves input unread
            pass


def _attempted_before() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


class _Verified:
    """Arrow batches, each given out once the topics it was read from are known to be the planned ones."""

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


def worker_cached(
    key: Hashable, make: Callable[[], Any], end: Callable[[Any], object] = lambda made: made.close()
) -> Any:
    """What `make` gave the first time it was asked for under `key` in this process: a client, which is costly to make.

    `end` lets go of it when the process ends.
    """
    found = KEPT.pop(key, None) or (make(), end)
    KEPT[key] = found  # the last used is the last one
    while len(KEPT) > _MOST_KEPT:
        evict(next(iter(KEPT)))
    return found[0]


def evict(key: Hashable) -> None:
    """Let go of what is kept under `key`, if anything: the next one to ask gets a new one."""
    if (found := KEPT.pop(key, None)) is not None:
        made, end = found
        with suppress(Exception):  # a lost connection may raise anything
            end(made)


@atexit.register
def _close() -> None:
    for key in list(KEPT):
        evict(key)
