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
_OURS = re.compile(r'relation "headrace_(?:staging|rows)_\w+"')
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
    unchanged: Callable[[], None] | None
    """Compares the current topic ids with those that the batch was planned with."""
    copy: str
    before: Sequence[str] = ()
    after: Sequence[str] = ()

    def __call__(self, batches: Iterator[Any]) -> Report:
        from pyspark import TaskContext

        context = TaskContext.get()
        wanted = self.batch.ranges[context.partitionId() if context else 0]
        try:
            with _transaction(self.dsn) as connection:
                self._look(connection, wanted)
                for statement in self.before:
                    connection.execute(statement)
                rows = _copy(connection, self.copy, batches)
                for statement in self.after:
                    connection.execute(statement)
                if self.unchanged is not None:
                    self.unchanged()
                self._move(connection, wanted)
            return Report(rows)
        except _AlreadyThere:
            return Report()

    def _move(self, connection: Any, wanted: Range) -> None:
        claims = "SELECT claim FROM headrace_claims WHERE pipeline = %s FOR SHARE"
        if connection.execute(claims, [self.pipeline]).fetchall() != [(self.claim,)]:
            raise claim_lost(self.pipeline)
        place = [self.pipeline, wanted.at.topic, wanted.at.partition]
        moved = connection.execute(
            'INSERT INTO headrace_offsets AS o (pipeline, topic, "partition", next_offset) VALUES (%s, %s, %s, %s)'
            ' ON CONFLICT (pipeline, topic, "partition") DO UPDATE SET next_offset = excluded.next_offset'
            " WHERE o.next_offset = %s",
            [*place, wanted.until, wanted.start],
        )
        if not moved.rowcount:
            self._look(connection, wanted)
        # Read after the offset is locked: an offset reset for a recreated topic changes both in one transaction.
        self._refuse_another_topic(connection, wanted.at.topic)

    def _refuse_another_topic(self, connection: Any, topic: str) -> None:
        found = connection.execute(
            "SELECT topic_ids FROM headrace_pipelines WHERE pipeline = %s", [self.pipeline]
        ).fetchall()
        stored = json.loads(found[0][0]).get(topic) if found else None
        if None not in (stored, self.batch.topic_ids.get(topic)) and stored != self.batch.topic_ids[topic]:
            raise topic_recreated_conflict(self.batch, topic, stored)

    def _look(self, connection: Any, wanted: Range) -> None:
        """Raise if the offset is not the start of the range."""
        found = connection.execute(
            'SELECT next_offset FROM headrace_offsets WHERE pipeline = %s AND topic = %s AND "partition" = %s',
            [self.pipeline, wanted.at.topic, wanted.at.partition],
        ).fetchall()
        stands = found[0][0] if found else wanted.start
        if stands == wanted.until:
            raise _AlreadyThere
        if stands != wanted.start:
            raise OffsetConflict(
                f"{wanted} was refused: its offset stands at {stands}",
                hint="another run of this pipeline is active; let one of them finish, or stop it",
            )


class _AlreadyThere(Exception):
    """Another attempt of this task has committed."""


@dataclass(frozen=True, slots=True)
class CopyToStagingTask:
    """COPY the rows of one task to the staging table, each marked with this attempt.

    `most` is the number of rows that the database may reject (None: the first one is an error). Bisection finds them.
    """

    dsn: str
    copy: str
    most: int | None = None

    def __call__(self, batches: Iterator[Any]) -> Report:
        attempt = random.getrandbits(62)
        refused: list[tuple[RecordId, str]] = []
        rows = 0
        with _transaction(self.dsn) as connection:
            connection.execute("SELECT set_config('headrace.attempt', %s, true)", [str(attempt)])
            # The connection is idle while the transform computes the next batch, which may take any time.
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            if self.most is None:
                rows = _copy(connection, self.copy, batches)
            else:
                for batch in batches:
                    rows += self._sift(connection, batch, refused, self.most)
        return Report(rows, attempt, refused)

    def _sift(self, connection: Any, batch: Any, refused: list[tuple[RecordId, str]], most: int) -> int:
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
            refused.append((RecordId(topic, partition, offset), _reason(error)))
            if len(refused) > most:
                raise too_many_bad_records(most, f"{refused[0][0]}: {refused[0][1]}") from error
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
        raise bad_row(error) from error
    except psycopg.errors.UndefinedTable as error:
        # Another run has taken over and dropped the staging tables.
        raise RetriableError(f"the database: {error}") from error
    except psycopg.Error as error:
        raise client.translate_error(error, "the database") from error


def _begin_transaction(dsn: str) -> Any:
    psycopg = require("psycopg", extra="postgres")
    if (kept := _connections.pop(dsn, None)) is not None:
        try:
            kept.execute(client.BEGIN)
        except psycopg.OperationalError:  # the server was restarted since the last task
            kept.close()
        else:
            return kept
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
            raise RetriableError(f"the database took {cursor.rowcount:,} of {rows:,} rows", hint="please report this")
    return rows


def _buffer(lines: Any) -> memoryview:
    """All lines of an Arrow array as one buffer: they are contiguous."""
    _, offsets, data = lines.buffers()
    if not len(lines):
        return memoryview(b"")
    # With spark.sql.execution.arrow.useLargeVarTypes the offsets are 64 bits wide.
    ends = memoryview(offsets).cast("q" if str(lines.type) == "large_string" else "i")
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def bad_row(error: Any, hint: str = DEAD_LETTER_HINT) -> BadRecord:
    return rejected_row_error("PostgreSQL", _reason(error), hint)


def claim_lost(pipeline: str) -> OffsetConflict:
    return OffsetConflict(f"another run of {pipeline} has taken over", hint="let one of them finish, or stop it")


def _reason(error: Any) -> str:
    where = getattr(error.diag, "context", None) or ""
    column = where.partition("column ")[2].partition(":")[0] if "column " in where else ""
    detail = _OURS.sub("the table", error.diag.message_primary or str(error))
    return f"{detail} (column {column})" if column else detail
