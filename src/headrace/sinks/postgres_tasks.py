"""What the tasks of a batch do on the executors: forward lines to COPY, in a transaction each.

A task never raises what it can say: its report does, so that Spark neither repeats what cannot succeed nor buries the
reason, and the other tasks finish.
"""

from __future__ import annotations

import json
import random
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.errors import BadRecord, HeadraceError, OffsetConflict
from headrace.extras import require
from headrace.letters import Origin, too_many
from headrace.sinks.arrow import map_in_arrow
from headrace.stores import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from headrace.types import Range

LINE = "line"
_OURS = re.compile(r'relation "headrace_(?:staging|rows)_\w+"')
_SAVEPOINT = "headrace_lines"
# One per Python worker, and Spark has one of those per task that runs: that is the bound.
_connections: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one task."""

    rows: int = 0
    attempt: int = 0
    refused: Sequence[tuple[Origin, str]] = ()
    error: tuple[str, str, str | None] | None = None

    def to_json(self) -> str:
        return json.dumps([self.rows, self.attempt, [[*origin, why] for origin, why in self.refused], self.error])

    @classmethod
    def from_json(cls, text: str) -> Report:
        rows, attempt, refused, error = json.loads(text)
        return cls(rows, attempt, [(Origin(*origin), why) for *origin, why in refused], error and tuple(error))


def run(lines: DataFrame, task: Callable[[Iterator[Any]], Report]) -> list[Report]:
    """Every task's report; the first error in one of them is raised."""

    def in_worker(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"report": [task(batches).to_json()]})

    reports = [Report.from_json(row["report"]) for row in map_in_arrow(lines, in_worker, "report STRING").collect()]
    for report in reports:
        if report.error is not None:
            kind, message, hint = report.error
            raise getattr(errors, kind)(message, hint=hint)
    return reports


@dataclass(frozen=True, slots=True)
class ByPartition:
    """COPY the rows of one range, and move its offset, in one transaction.

    A repeated or speculative attempt waits for the one before it, finds the offset moved, and writes nothing.
    """

    dsn: str
    pipeline: str
    ranges: tuple[Range, ...]
    copy: str
    before: Sequence[str] = field(default=())
    after: Sequence[str] = field(default=())

    def __call__(self, batches: Iterator[Any]) -> Report:
        from pyspark import TaskContext

        context = TaskContext.get()
        wanted = self.ranges[context.partitionId() if context else 0]
        try:
            with _transaction(self.dsn) as connection:
                if not self._at_start(connection, wanted):
                    return Report()
                for statement in self.before:
                    connection.execute(statement)
                rows = _copy(connection, self.copy, batches)
                for statement in self.after:
                    connection.execute(statement)
                connection.execute(
                    "UPDATE headrace_offsets SET next_offset = %s"
                    ' WHERE pipeline = %s AND topic = %s AND "partition" = %s',
                    [wanted.until, self.pipeline, wanted.at.topic, wanted.at.partition],
                )
            return Report(rows)
        except HeadraceError as error:
            return _failed(error)
        finally:
            for _ in batches:  # a task that leaves its input unread would cost the worker
                pass

    def _at_start(self, connection: Any, wanted: Range) -> bool:
        """Lock the offset. False if these rows are there already."""
        row = [self.pipeline, wanted.at.topic, wanted.at.partition]
        connection.execute(
            'INSERT INTO headrace_offsets (pipeline, topic, "partition", next_offset) VALUES (%s, %s, %s, %s)'
            " ON CONFLICT DO NOTHING",
            [*row, wanted.start],
        )
        ((stands,),) = connection.execute(
            "SELECT next_offset FROM headrace_offsets WHERE pipeline = %s AND topic = %s"
            ' AND "partition" = %s FOR UPDATE',
            row,
        ).fetchall()
        if stands not in (wanted.start, wanted.until):
            raise OffsetConflict(
                f"{wanted} was refused: its offset stands at {stands}",
                hint="another run of this pipeline is active; let one of them finish, or stop it",
            )
        return bool(stands == wanted.start)


@dataclass(frozen=True, slots=True)
class ByAttempt:
    """COPY the rows of one task into the staging table, each marked with this attempt.

    `most` says how many rows the database may refuse (None: the first one is an error); they are found by halving.
    """

    dsn: str
    copy: str
    most: int | None = None

    def __call__(self, batches: Iterator[Any]) -> Report:
        attempt = random.getrandbits(62)
        refused: list[tuple[Origin, str]] = []
        rows = 0
        try:
            with _transaction(self.dsn) as connection:
                connection.execute("SELECT set_config('headrace.attempt', %s, true)", [str(attempt)])
                if self.most is None:
                    rows = _copy(connection, self.copy, batches)
                else:
                    for batch in batches:
                        rows += self._sift(connection, batch, refused, self.most)
            return Report(rows, attempt, refused)
        except HeadraceError as error:
            return _failed(error)
        finally:
            for _ in batches:
                pass

    def _sift(self, connection: Any, batch: Any, refused: list[tuple[Origin, str]], most: int) -> int:
        psycopg = require("psycopg", extra="postgres")
        connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            rows = _copy(connection, self.copy, [batch])
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            if len(batch) > 1:
                half = len(batch) // 2
                first = self._sift(connection, batch.slice(0, half), refused, most)
                return first + self._sift(connection, batch.slice(half), refused, most)
            _, topic, partition, offset = (column[0].as_py() for column in batch.columns)
            if topic is None:
                raise bad_row(error) from error
            refused.append((Origin(topic, partition, offset), _reason(error)))
            if len(refused) > most:
                raise too_many(most, f"{refused[0][0]}: {refused[0][1]}") from error
            return 0
        connection.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return rows


@contextmanager
def _transaction(dsn: str) -> Iterator[Any]:
    psycopg = require("psycopg", extra="postgres")
    try:
        connection = _begun(dsn)
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            connection.close()  # which rolls back
            raise
        _connections[dsn] = connection
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise bad_row(error) from error
    except psycopg.Error as error:
        raise postgres.translated(error, "the database") from error


def _begun(dsn: str) -> Any:
    psycopg = require("psycopg", extra="postgres")
    if (kept := _connections.pop(dsn, None)) is not None:
        try:
            kept.execute(postgres.BEGIN)
        except psycopg.OperationalError:  # the server was restarted since the last task
            kept.close()
        else:
            return kept
    connection = postgres.connect(dsn)
    connection.execute(postgres.BEGIN)
    return connection


def _copy(connection: Any, statement: str, batches: Any) -> int:
    rows = 0
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for batch in batches:
            copy.write(_buffer(batch.column(0)))
            rows += len(batch)
    return rows


def _buffer(lines: Any) -> memoryview:
    """All lines of an Arrow array at once: they lie one after the other."""
    _, offsets, data = lines.buffers()
    if not len(lines):
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def bad_row(error: Any) -> BadRecord:
    return BadRecord(
        f"PostgreSQL refuses a row: {_reason(error)}",
        hint='dead_letters="…" puts such records aside; or correct them in the transform',
    )


def _reason(error: Any) -> str:
    where = getattr(error.diag, "context", None) or ""
    column = where.partition("column ")[2].partition(":")[0] if "column " in where else ""
    detail = _OURS.sub("the table", error.diag.message_primary or str(error))
    return f"{detail} (column {column})" if column else detail


def _failed(error: HeadraceError) -> Report:
    return Report(error=(type(error).__name__, error.message, error.hint))
