"""The PostgreSQL sink: writes rows and offsets in one transaction."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from headrace.connectors.postgres.claims import ClaimedOffsets
from headrace.connectors.postgres.client import creating
from headrace.connectors.postgres.copy_task import ATTEMPT, CopyAndCommitTask, CopyToStagingTask, bad_row_error
from headrace.connectors.sql.dead_letter_table import DeadLetterTables
from headrace.connectors.sql.identifiers import qualified, quoted, quoted_list
from headrace.connectors.sql.table_check import Column
from headrace.connectors.sql.upsert import WriteMode, row_exists_error
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
    from headrace.connectors.sql.table_check import TableSchemaCheck
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
    """Writes rows to `table` from the executors by COPY: appends them, or replaces the row with the same `key`.

    With `visible="partition"`, if the plan does not shuffle rows, each task writes its rows and moves the offset of its
    partition in one transaction. Otherwise, and always with `visible="batch"`, the tasks fill a staging table and one
    transaction publishes the batch.

    `create` creates the table if it does not exist; `evolve` adds missing columns. In the modes "upsert" and
    "delete-aware" a tombstone (a record without a value) deletes the row with its key; in "delete-aware" a row whose
    column `deleted` is true does so, too.
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
        self._offsets = ClaimedOffsets(dsn, after_claim=self._drop_stale_staging_tables)
        self._write_mode = WriteMode.of(table, key, mode, deleted)
        check_choice("visible", visible, get_args(Visible), hint='visible="partition", or visible="batch"')
        self._create_table = create
        self._evolve = evolve
        self._visible = visible
        self._target: PostgresTable | None = None
        self._staging_table: str | None = None

    @property
    def offsets(self) -> ClaimedOffsets:
        return self._offsets

    @property
    def identity(self) -> str:
        return f"sinks.Postgres({masked(self._offsets.dsn)!r}, {self._write_mode.table!r})"

    @property
    def replaces_rows(self) -> bool:
        return self._write_mode.keyed

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._write_mode.key

    def _full_name(self, table: str) -> str:
        return table if "." in table else f"public.{table}"

    def close(self) -> None:
        if self._staging_table is not None:
            with suppress(require("psycopg", extra="postgres").Error, ConfigError):  # already closed
                self._execute_unless_locked(f"DROP TABLE IF EXISTS {self._staging_table}")
        self._staging_table = self._target = None
        super().close()

    def prepare(self, schema: StructType) -> None:
        target, check = self._schema_check(schema)
        with self._offsets.translating_errors():
            self._offsets.ensure_claims_table()
            columns = check.ensure_table(self._read_columns, self._execute_ddl)
            self._check_key(target)
        target.existing = tuple(f"{column.name} {column.full_type}" for column in columns)
        self._target, self._staging_table = target, None

    def check_target(self, schema: StructType) -> None:
        target, check = self._schema_check(schema)
        with self._offsets.connected():
            columns = self._read_columns()
            check.check(columns)
            if columns:
                self._check_key(target)

    def _schema_check(self, schema: StructType) -> tuple[PostgresTable, TableSchemaCheck]:
        from headrace.connectors.postgres.table import PostgresTable

        target = PostgresTable(self._write_mode, schema)
        return target, target.schema_check(repr(self), create=self._create_table, evolve=self._evolve)

    def _check_key(self, target: PostgresTable) -> None:
        if self._write_mode.keyed:
            target.check_key([set(names) for (names,) in self._query(_UNIQUE, self._write_mode.name)])

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str:
        if self._visible == "partition" and not cached and task_alignment.plan_is_narrow(rows):
            return "each task copies its partition's rows and moves its offset in one transaction"
        cause = "the batch is cached" if cached else "the plan moves rows between tasks"
        reason = 'visible="batch"' if self._visible == "batch" else cause
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
        return self.require_open(self._target)

    def _write_partitions(self, batch: Batch, rows: DataFrame, target: PostgresTable) -> None:
        """1. claim the pipeline; 2. per task, in its own transaction, rows and offset; 3. record the batch."""
        store = self._offsets
        store.claim_for(batch)
        task = CopyAndCommitTask(
            store.dsn, store.pipeline, store.claim, batch, topic_check.current(), **target.copy_statements()
        )
        with store.checking_claim():
            tasks.run(target.lines(batch, rows), task, verify_pieces=False)
        reach("postgres: partitions written")
        store.record_batch(batch)
        reach("postgres: committed")

    def _write_batch(
        self, batch: Batch, rows: DataFrame, target: PostgresTable, dead_letters: DeadLetterBatch | None
    ) -> None:
        """1. claim the pipeline; 2. fill the staging table; in one transaction 3. move the offsets, 4. publish the rows
        and 5. store dead letters."""
        self._offsets.claim_for(batch)
        stage = self._ensure_staging_table(target)
        limit = None if dead_letters is None else dead_letters.limit
        task = CopyToStagingTask(self._offsets.dsn, f"COPY {stage} ({quoted_list(target.staged)}) FROM STDIN", limit)
        with self._offsets.checking_claim():
            lines = target.lines(batch, rows, with_origin=dead_letters is not None)
            reports = tasks.run(lines, task, verify_pieces=False)
        topic_check.verify()
        reach("postgres: staged")
        letters = []
        if dead_letters is not None:
            place = f"table {self._write_mode.table}"
            dead_letters.reject([RejectedRow(origin, reason, place) for r in reports for origin, reason in r.refused])
            letters = list(dead_letters.flush())
        with self._offsets.transaction() as connection:
            self._offsets.require_claim(connection)  # otherwise the staging table was dropped
            self._offsets.commit_within(connection, batch)
            self._publish(connection.driver, stage, target, reports)
            if dead_letters is not None and dead_letters.table is not None:
                self.store_dead_letters(connection, dead_letters.table, letters)
            reach("postgres: published")
        reach("postgres: committed")
        self._truncate_staging_table(stage)

    def _publish(self, driver: Any, stage: str, target: PostgresTable, reports: Sequence[Report]) -> None:
        """Publish the rows of the attempts that Spark counts: an attempt reported as failed may have committed, too."""
        psycopg = require("psycopg", extra="postgres")
        attempts = ", ".join(str(report.attempt) for report in reports if report.rows)
        if not attempts:
            return
        staged = f"(SELECT {quoted_list(target.staged)} FROM {stage} WHERE {ATTEMPT} IN ({attempts}))"
        ((count,),) = driver.execute(f"SELECT count(*) FROM {staged} AS s").fetchall()
        if count != sum(report.rows for report in reports):
            # The table is unlogged: a crash of the server truncates it.
            raise RetriableError(f"{self!r}: the staging table has lost rows; was the server restarted?")
        try:
            for statement in self._write_mode.merge_statements(staged, target.columns):
                driver.execute(statement)
        except psycopg.errors.UniqueViolation as error:
            raise row_exists_error(self, error.diag.message_detail or error) from error
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            # Such as a foreign key, which the staging table does not check: the rejected row is unknown.
            raise bad_row_error(error, hint="correct the rows in the transform, or what they refer to") from error

    def _ensure_staging_table(self, target: PostgresTable) -> str:
        if self._staging_table is None:
            schema, dot, _ = self._write_mode.name.rpartition(".")
            name = f"{schema}{dot}{quoted(self._stage_prefix() + uuid.uuid4().hex[:8])}"
            with self._offsets.translating_errors():
                self._offsets.connection.execute(
                    target.create_staging_statement(name, self._read_columns(), self._read_check_constraints())
                )
            self._staging_table = name
        return self._staging_table

    def _truncate_staging_table(self, stage: str) -> None:
        """If an attempt that does not count still writes to the table, the next batch gets a new one."""
        try:
            self._execute_unless_locked(f"TRUNCATE {stage}")
        except require("psycopg", extra="postgres").Error:
            self._staging_table = None

    def _drop_stale_staging_tables(self) -> None:
        """Drop the staging tables of other runs of this pipeline. A run that is still alive fails and stops."""
        like = self._stage_prefix().replace("_", r"\_") + "%"
        for (name,) in self._query(_STAGING, like):
            with suppress(require("psycopg", extra="postgres").errors.LockNotAvailable):
                self._execute_unless_locked(f"DROP TABLE IF EXISTS {name}")

    def _execute_unless_locked(self, statement: str) -> None:
        """Give up after 1 s: a frozen task may hold a lock on a staging table. A later run then drops the table."""
        connection = self._offsets.connection
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            connection.execute(statement)

    def _execute_ddl(self, statements: Sequence[str]) -> None:
        with creating(self._offsets.connection) as connection:
            for statement in statements:
                connection.execute(statement)

    def _stage_prefix(self) -> str:
        digest = hashlib.sha256(f"{self._offsets.pipeline} {self._write_mode.table}".encode()).hexdigest()[:10]
        return f"headrace_staging_{digest}_"

    def _read_columns(self) -> list[Column]:
        return [Column(*row) for row in self._query(_COLUMNS, self._write_mode.name)]

    def _creating(self, connection: Any) -> AbstractContextManager[None]:
        return creating(connection.driver)

    def _has_table(self, connection: Any, table: str) -> bool:
        return bool(connection.execute("SELECT 1 WHERE to_regclass(?) IS NOT NULL", [qualified(table)]).fetchall())

    def _read_check_constraints(self) -> list[tuple[str, str, list[str]]]:
        return [(name, text, list(columns)) for name, text, columns in self._query(_CHECKS, self._write_mode.name)]

    def _query(self, query: str, *parameters: Any) -> list[Any]:
        rows: list[Any] = self._offsets.connection.execute(query, parameters).fetchall()
        return rows
