"""Runs in the tasks of a batch: forwards lines to COPY, in one transaction per task."""

from __future__ import annotations

import atexit
import json
import random
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors.postgres import client
from headrace.core.dead_letters import DEAD_LETTER_HINT, RecordId, rejected_row_error, too_many_bad_records
from headrace.core.state import topic_recreated_conflict
from headrace.errors import BadRecord, OffsetConflict, RetriableError
from headrace.spark.tasks import Report
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.types import Batch, Range

LINE = "line"
ATTEMPT = "headrace_attempt"
"""The column of a staging table with the attempt of the task that wrote the row."""
_INTERNAL_TABLE = re.compile(r'relation "headrace_(?:staging|rows)_\w+"')
_SAVEPOINT = "headrace_lines"
# One per Python worker, and Spark has one worker per running task, which bounds their number.
_connections: dict[str, Any] = {}


@atexit.register
def _close() -> None:
    for connection in _connections.values():
        connection.close()


@dataclass(frozen=True, slots=True)
class CopyAndCommitTask:
    """COPY the rows of one range and move its offset, in one transaction.

    The task locks nothing before the end, so that a frozen task blocks no other. Of several attempts the first one that
    moves the offset commits; the others roll back. A task fails if another run has taken over the pipeline.
    """

    dsn: str
    pipeline: str
    claim: str
    batch: Batch
    check_topics: Callable[[], None] | None
    """Compares the current topic ids with those that the batch was planned with."""
    copy: str
    before: Sequence[str] = ()
    after: Sequence[str] = ()

    def __call__(self, batches: Iterator[Any]) -> Report:
        from pyspark import TaskContext

        context = TaskContext.get()
        task_range = self.batch.ranges[context.partitionId() if context else 0]
        try:
            with _transaction(self.dsn) as connection:
                self._check_offset(connection, task_range)
                for statement in self.before:
                    connection.execute(statement)
                rows = _copy(connection, self.copy, batches)
                for statement in self.after:
                    connection.execute(statement)
                if self.check_topics is not None:
                    self.check_topics()
                self._move_offset(connection, task_range)
            return Report(rows)
        except _AlreadyCommitted:
            return Report()

    def _move_offset(self, connection: Any, task_range: Range) -> None:
        claims = "SELECT claim FROM headrace_claims WHERE pipeline = %s FOR SHARE"
        if connection.execute(claims, [self.pipeline]).fetchall() != [(self.claim,)]:
            raise claim_lost_error(self.pipeline)
        key = [self.pipeline, task_range.at.topic, task_range.at.partition]
        moved = connection.execute(
            'INSERT INTO headrace_offsets AS o (pipeline, topic, "partition", next_offset) VALUES (%s, %s, %s, %s)'
            ' ON CONFLICT (pipeline, topic, "partition") DO UPDATE SET next_offset = excluded.next_offset'
            " WHERE o.next_offset = %s",
            [*key, task_range.until, task_range.start],
        )
        if not moved.rowcount:
            self._check_offset(connection, task_range)
        # Read after the offset is locked: an offset reset for a recreated topic changes both in one transaction.
        self._check_topic_id(connection, task_range.at.topic)

    def _check_topic_id(self, connection: Any, topic: str) -> None:
        rows = connection.execute(
            "SELECT topic_ids FROM headrace_pipelines WHERE pipeline = %s", [self.pipeline]
        ).fetchall()
        stored = json.loads(rows[0][0]).get(topic) if rows else None
        if None not in (stored, self.batch.topic_ids.get(topic)) and stored != self.batch.topic_ids[topic]:
            raise topic_recreated_conflict(self.batch, topic, stored)

    def _check_offset(self, connection: Any, task_range: Range) -> None:
        """Raise if the offset is not the start of the range."""
        rows = connection.execute(
            'SELECT next_offset FROM headrace_offsets WHERE pipeline = %s AND topic = %s AND "partition" = %s',
            [self.pipeline, task_range.at.topic, task_range.at.partition],
        ).fetchall()
        stored = rows[0][0] if rows else task_range.start
        if stored == task_range.until:
            raise _AlreadyCommitted
        if stored != task_range.start:
            raise OffsetConflict(
                f"{task_range} was refused: its offset stands at {stored}",
                hint="another run of this pipeline is active; let one of them finish, or stop it",
            )


class _AlreadyCommitted(Exception):
    """Another attempt of this task has committed."""


@dataclass(frozen=True, slots=True)
class CopyToStagingTask:
    """COPY the rows of one task to the staging table, each marked with this attempt.

    `limit` is the number of rows that the database may reject (None: the first one is an error). Bisection finds them.
    """

    dsn: str
    copy: str
    limit: int | None = None

    def __call__(self, batches: Iterator[Any]) -> Report:
        attempt = random.getrandbits(62)
        rejected: list[tuple[RecordId, str]] = []
        rows = 0
        with _transaction(self.dsn) as connection:
            connection.execute("SELECT set_config('headrace.attempt', %s, true)", [str(attempt)])
            # The connection is idle while the transform computes the next batch, which may take any time.
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            if self.limit is None:
                rows = _copy(connection, self.copy, batches)
            else:
                for batch in batches:
                    rows += self._copy_bisecting(connection, batch, rejected, self.limit)
        return Report(rows, attempt, rejected)

    def _copy_bisecting(self, connection: Any, batch: Any, rejected: list[tuple[RecordId, str]], limit: int) -> int:
        psycopg = require("psycopg", extra="postgres")
        connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            rows = _copy(connection, self.copy, [batch])
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            if len(batch) > 1:
                half = len(batch) // 2
                first = self._copy_bisecting(connection, batch.slice(0, half), rejected, limit)
                return first + self._copy_bisecting(connection, batch.slice(half), rejected, limit)
            _, topic, partition, offset = (column[0].as_py() for column in batch.columns)
            if topic is None:
                raise bad_row_error(error) from error
            rejected.append((RecordId(topic, partition, offset), _reason(error)))
            if len(rejected) > limit:
                raise too_many_bad_records(limit, f"{rejected[0][0]}: {rejected[0][1]}") from error
            return 0
        connection.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return rows


@contextmanager
def _transaction(dsn: str) -> Iterator[Any]:
    psycopg = require("psycopg", extra="postgres")
    try:
        connection = _begin_transaction(dsn)
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            connection.close()  # closing rolls back
            raise
        if _connections.setdefault(dsn, connection) is not connection:
            connection.close()
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise bad_row_error(error) from error
    except psycopg.errors.UndefinedTable as error:
        # Another run has taken over and dropped the staging tables.
        raise RetriableError(f"the database: {error}") from error
    except psycopg.Error as error:
        raise client.translate_error(error, "the database") from error


def _begin_transaction(dsn: str) -> Any:
    psycopg = require("psycopg", extra="postgres")
    if (cached := _connections.pop(dsn, None)) is not None:
        try:
            cached.execute(client.BEGIN)
        except psycopg.OperationalError:  # the server was restarted since the last task
            cached.close()
        else:
            return cached
    connection = client.connect(dsn)
    connection.execute(client.BEGIN)
    return connection


def _copy(connection: Any, statement: str, batches: Any) -> int:
    rows = 0
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for batch in batches:
                copy.write(_buffer(batch.column(0)))
                rows += len(batch)
        if cursor.rowcount != rows:
            raise RetriableError(f"the database stored {cursor.rowcount:,} of {rows:,} rows", hint="please report this")
    return rows


def _buffer(lines: Any) -> memoryview:
    """All lines of an Arrow array as one buffer: they are contiguous."""
    _, offsets, data = lines.buffers()
    if not len(lines):
        return memoryview(b"")
    # With spark.sql.execution.arrow.useLargeVarTypes the offsets are 64 bits wide.
    ends = memoryview(offsets).cast("q" if str(lines.type) == "large_string" else "i")
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def bad_row_error(error: Any, hint: str = DEAD_LETTER_HINT) -> BadRecord:
    return rejected_row_error("PostgreSQL", _reason(error), hint)


def claim_lost_error(pipeline: str) -> OffsetConflict:
    return OffsetConflict(f"another run of {pipeline} has taken over", hint="let one of them finish, or stop it")


def _reason(error: Any) -> str:
    where = getattr(error.diag, "context", None) or ""
    column = where.partition("column ")[2].partition(":")[0] if "column " in where else ""
    detail = _INTERNAL_TABLE.sub("the table", error.diag.message_primary or str(error))
    return f"{detail} (column {column})" if column else detail
