"""A table in PostgreSQL, with the offsets beside it in the same transaction."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from headrace.connectors.postgres.claims import ClaimedOffsets
from headrace.connectors.postgres.client import creating
from headrace.connectors.postgres.copy_task import ATTEMPT, CopyAndCommitTask, CopyToStagingTask, bad_row
from headrace.connectors.sql.dead_letter_table import DeadLetterTables
from headrace.connectors.sql.identifiers import listed, qualified, quoted
from headrace.connectors.sql.table_check import Column
from headrace.connectors.sql.upsert import WriteMode, already_there
from headrace.core import topic_check
from headrace.core.dead_letters import RejectedRow
from headrace.errors import ConfigError, RetriableError
from headrace.spark import task_alignment, tasks
from headrace.support.crashpoints import reach
from headrace.support.optional_imports import require
from headrace.support.redaction import masked
from headrace.support.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.connectors.postgres.table import PostgresTable
    from headrace.core.dead_letters import DeadLetterBatch
    from headrace.spark.tasks import Report
    from headrace.types import Batch

Visible = Literal["partition", "batch"]
_COLUMNS = """SELECT a.attname, coalesce(b.typname, t.typname), format_type(a.atttypid, a.atttypmod),
    a.attnotnull AND NOT (a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> ''), a.attnotnull FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_CHECKS = """SELECT conname, pg_get_expr(conbin, conrelid), array(SELECT attname FROM pg_attribute
    WHERE attrelid = conrelid AND attnum = ANY (conkey)) FROM pg_constraint
    WHERE conrelid = to_regclass(%s) AND contype = 'c'"""
_UNIQUE = """SELECT array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid
    AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) FROM pg_index i WHERE i.indrelid = to_regclass(%s)
    AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL"""
_STAGING = """SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n
    ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relname LIKE %s"""


class Postgres(DeadLetterTables):
    """Rows into `table`, from the executors by COPY: appended, or put in place of the row with the same `key`.

    With `visible="partition"`, where the plan moves no row between tasks, each task writes its rows and moves the
    offset of its partition in one transaction. Otherwise, and always with `visible="batch"`, the tasks fill a staging
    table and one transaction publishes the batch.

    `create` makes the table if it is not there, `evolve` adds columns that it lacks. In the modes "upsert" and
    "delete-aware" a record without a value deletes the row with its key; in the latter so does a row whose column
    `deleted` is true.
    """

    driver = ("psycopg", "postgres")
    _dead_letter_types: ClassVar[dict[str, str]] = {"bytes": "BYTEA", "time": "TIMESTAMPTZ"}

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        mode: str = "append",
        deleted: str = "deleted",
        create: bool = False,
        evolve: bool = False,
        visible: Visible = "partition",
    ) -> None:
        self._offsets = ClaimedOffsets(dsn, after_claim=self._clear_staging)
        self._shape = WriteMode.of(table, key, mode, deleted)
        check_choice("visible", visible, get_args(Visible), hint='visible="partition", or visible="batch"')
        self._create_table = create
        self._evolve = evolve
        self._visible = visible
        self._target: PostgresTable | None = None
        self._stage: str | None = None

    @property
    def offsets(self) -> ClaimedOffsets:
        return self._offsets

    @property
    def identity(self) -> str:
        return f"sinks.Postgres({masked(self._offsets.dsn)!r}, {self._shape.table!r})"

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._shape.key

    def _whole_name(self, table: str) -> str:
        return table if "." in table else f"public.{table}"

    def close(self) -> None:
        if self._stage is not None:
            with suppress(require("psycopg", extra="postgres").Error, ConfigError):  # not open any more
                self._soon(f"DROP TABLE IF EXISTS {self._stage}")
        self._stage = self._target = None
        super().close()

    def prepare(self, schema: StructType) -> None:
        from headrace.connectors.postgres.table import PostgresTable

        wanted = PostgresTable(self._shape, schema)
        fit = wanted.fit(repr(self))
        with self._offsets.translating_errors():
            self._offsets.ensure_claims_table()
            there = fit.made(self._columns, self._define, wanted.takes, create=self._create_table, evolve=self._evolve)
            if self._shape.keyed:
                wanted.check_key([set(found) for (found,) in self._ask(_UNIQUE, self._shape.name)])
        wanted.there = tuple(f"{column.name} {column.shown}" for column in there)
        self._target, self._stage = wanted, None

    def check_target(self, schema: StructType) -> None:
        from headrace.connectors.postgres.table import PostgresTable

        wanted = PostgresTable(self._shape, schema)
        with self._offsets.connected():
            there = self._columns()
            wanted.fit(repr(self)).check(there, wanted.takes, create=self._create_table, evolve=self._evolve)
            if self._shape.keyed and there:
                wanted.check_key([set(found) for (found,) in self._ask(_UNIQUE, self._shape.name)])

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str:
        if self._visible == "partition" and not cached and task_alignment.plan_is_narrow(rows):
            return "each task copies its partition's rows and moves its offset in one transaction"
        asked = 'visible="batch"' if self._visible == "batch" else None
        reason = asked or ("the batch is cached" if cached else "the plan moves rows between tasks")
        return f"tasks copy into a staging table, one transaction publishes the batch ({reason})"

    def write(self, batch: Batch, rows: DataFrame) -> None:
        target = self._prepared_table(rows)
        if self._visible == "partition" and task_alignment.tasks_match_ranges(rows, len(batch.ranges)):
            self._write_partitions(batch, rows, target)
        else:
            self._write_batch(batch, rows, target, None)

    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        self._write_batch(batch, rows, self._prepared_table(rows), dead_letters)

    def _prepared_table(self, rows: DataFrame) -> PostgresTable:
        self.ensure_prepared(rows.schema)
        assert self._target is not None
        return self._target

    def _write_partitions(self, batch: Batch, rows: DataFrame, target: PostgresTable) -> None:
        """1. claim the pipeline; 2. per task, in its own transaction, rows and offset; 3. note the batch."""
        store = self._offsets
        store.claim_for(batch)
        work = CopyAndCommitTask(
            store.dsn, store.pipeline, store.claim, batch, topic_check.current(), **target.by_partition()
        )
        with store.checking_claim():
            tasks.run(target.lines(batch, rows), work, verify_pieces=False)
        reach("postgres: partitions written")
        store.record_batch(batch)
        reach("postgres: committed")

    def _write_batch(
        self, batch: Batch, rows: DataFrame, target: PostgresTable, dead_letters: DeadLetterBatch | None
    ) -> None:
        """1. claim the pipeline; 2. fill the staging table; in one transaction 3. publish it, 4. store dead letters and
        5. move the offsets."""
        self._offsets.claim_for(batch)
        stage = self._staging(target)
        most = None if dead_letters is None else dead_letters.limit
        work = CopyToStagingTask(self._offsets.dsn, f"COPY {stage} ({listed(target.staged)}) FROM STDIN", most)
        with self._offsets.checking_claim():
            lines = target.lines(batch, rows, traced=dead_letters is not None)
            reports = tasks.run(lines, work, verify_pieces=False)
        topic_check.verify()
        reach("postgres: staged")
        letters = []
        if dead_letters is not None:
            place = f"table {self._shape.table}"
            dead_letters.reject([RejectedRow(origin, why, place) for r in reports for origin, why in r.refused])
            letters = list(dead_letters.flush())
        with self._offsets.transaction() as connection:
            self._offsets.require_claim(connection)  # else the staging table is gone
            self._offsets.commit_within(connection, batch)
            self._publish(connection.driver, stage, target, reports)
            if dead_letters is not None and dead_letters.table is not None:
                self.store_dead_letters(connection, dead_letters.table, letters)
            reach("postgres: published")
        reach("postgres: committed")
        self._empty(stage)

    def _publish(self, driver: Any, stage: str, target: PostgresTable, reports: Sequence[Report]) -> None:
        """Only what the attempts left that Spark counts: one that was reported failed may have committed as well."""
        psycopg = require("psycopg", extra="postgres")
        attempts = ", ".join(str(report.attempt) for report in reports if report.rows)
        if not attempts:
            return
        ours = f"(SELECT {listed(target.staged)} FROM {stage} WHERE {ATTEMPT} IN ({attempts}))"
        ((there,),) = driver.execute(f"SELECT count(*) FROM {ours} AS s").fetchall()
        if there != sum(report.rows for report in reports):
            # The table is unlogged: a server that crashed has emptied it.
            raise RetriableError(f"{self!r}: the staging table has lost rows; was the server restarted?")
        try:
            for statement in self._shape.merge(ours, target.columns):
                driver.execute(statement)
        except psycopg.errors.UniqueViolation as error:
            raise already_there(self, error.diag.message_detail or error) from error
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            # Such as a foreign key: seen when the batch is published, and not row by row.
            raise bad_row(error, hint="correct the rows in the transform, or what they refer to") from error

    def _staging(self, target: PostgresTable) -> str:
        if self._stage is None:
            schema, dot, _ = self._shape.name.rpartition(".")
            name = f"{schema}{dot}{quoted(self._stage_prefix() + uuid.uuid4().hex[:8])}"
            with self._offsets.translating_errors():
                self._offsets.connection.execute(target.staging(name, self._columns(), self._checks()))
            self._stage = name
        return self._stage

    def _empty(self, stage: str) -> None:
        """Rows of attempts that did not count may still be on their way: then a new table is taken next time."""
        try:
            self._soon(f"TRUNCATE {stage}")
        except require("psycopg", extra="postgres").Error:
            self._stage = None

    def _clear_staging(self) -> None:
        """Drop what other runs of this pipeline left. One that still lives finds out, and stops."""
        like = self._stage_prefix().replace("_", r"\_") + "%"
        for (name,) in self._ask(_STAGING, like):
            with suppress(require("psycopg", extra="postgres").errors.LockNotAvailable):
                self._soon(f"DROP TABLE IF EXISTS {name}")

    def _soon(self, statement: str) -> None:
        """On a staging table: a task that froze may hold it, and somebody else clears it then."""
        connection = self._offsets.connection
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            connection.execute(statement)

    def _define(self, *statements: str) -> None:
        with creating(self._offsets.connection) as connection:
            for statement in statements:
                connection.execute(statement)

    def _stage_prefix(self) -> str:
        mark = hashlib.sha256(f"{self._offsets.pipeline} {self._shape.table}".encode()).hexdigest()[:10]
        return f"headrace_staging_{mark}_"

    def _columns(self) -> list[Column]:
        return [Column(*found) for found in self._ask(_COLUMNS, self._shape.name)]

    def _creating(self, connection: Any) -> AbstractContextManager[None]:
        return creating(connection.driver)

    def _has_table(self, connection: Any, table: str) -> bool:
        return bool(connection.execute("SELECT 1 WHERE to_regclass(?) IS NOT NULL", [qualified(table)]).fetchall())

    def _checks(self) -> list[tuple[str, str, list[str]]]:
        return [(name, text, list(columns)) for name, text, columns in self._ask(_CHECKS, self._shape.name)]

    def _ask(self, query: str, *parameters: Any) -> list[Any]:
        found: list[Any] = self._offsets.connection.execute(query, parameters).fetchall()
        return found
