"""A table in PostgreSQL, with the offsets beside it in the same transaction."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from headrace import stores
from headrace.crashpoints import reach
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.extras import require
from headrace.letters import Refusal
from headrace.masking import masked
from headrace.sinks import narrow
from headrace.sinks.base import METADATA, TransactionalSink
from headrace.sinks.tables import (
    DELETED,
    OFFSET,
    ORIGIN,
    Column,
    Fit,
    LetterTables,
    Shape,
    column_of,
    listed,
    quoted,
    times_in_utc,
)
from headrace.stores import sql
from headrace.stores.state import refuse_conflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    from headrace.letters import Quarantine
    from headrace.sinks.postgres_tasks import Report
    from headrace.types import Batch

Visible = Literal["partition", "batch"]
_ATTEMPT = "headrace_attempt"
_EXTRA = {ORIGIN: "text", OFFSET: "bigint", DELETED: "boolean"}
_CLAIMS = "CREATE TABLE IF NOT EXISTS headrace_claims (pipeline TEXT PRIMARY KEY, claim TEXT NOT NULL)"
_NO_CLAIMS = "SELECT 1 WHERE to_regclass('headrace_claims') IS NULL"
_CLAIM = """INSERT INTO headrace_claims (pipeline, claim) VALUES (?, ?)
    ON CONFLICT (pipeline) DO UPDATE SET claim = excluded.claim"""
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


class Postgres(stores.Postgres, LetterTables, TransactionalSink):
    """Rows into `table`, from the executors by COPY: appended, or put in place of the row with the same `key`.

    With `visible="partition"`, where the plan moves no row between tasks, each task writes its rows and moves the
    offset of its partition in one transaction. Otherwise, and always with `visible="batch"`, the tasks fill a staging
    table and one transaction publishes the batch.

    `create` makes the table if it is not there, `evolve` adds columns that it lacks. In the modes "upsert" and
    "delete-aware" a record without a value deletes the row with its key; in the latter so does a row whose column
    `deleted` is true.
    """

    _letters_types: ClassVar[dict[str, str]] = {"bytes": "BYTEA", "time": "TIMESTAMPTZ"}

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
        mirror: bool | str = False,
    ) -> None:
        super().__init__(dsn, mirror=mirror)
        self._shape = Shape.of(table, key, mode, deleted)
        if visible not in get_args(Visible):
            raise ConfigError(f"visible={visible!r} is unknown", hint='visible="partition", or visible="batch"')
        self._create_table = create
        self._evolve = evolve
        self._visible = visible
        self._target: _Target | None = None
        self._stage: str | None = None
        self._claim = ""
        self._claims = False

    def __repr__(self) -> str:
        return f"sinks.Postgres({masked(self._dsn)!r}, {self._shape.table!r})"

    def open(self, pipeline: str) -> Self:
        super().open(pipeline)
        self._claim, self._claims = uuid.uuid4().hex, False
        return self

    def close(self) -> None:
        if self._stage is not None and self._connection is not None:
            with suppress(require("psycopg", extra="postgres").Error):
                # A task that froze may hold it: the next run clears it then.
                drop = f"DROP TABLE IF EXISTS {self._stage}"
                self._connection.execute(f"BEGIN; SET LOCAL lock_timeout = '1s'; {drop}; COMMIT")
        self._stage = self._target = None
        super().close()

    def prepare(self, schema: StructType) -> None:
        """Compare the table with the rows to come, create or evolve it if told, clear what dead runs left."""
        wanted = _Target(self._shape, schema)
        fit = wanted.fit(repr(self))
        with self._translated():
            if self._ask(_NO_CLAIMS):
                self._define(_CLAIMS)
            there = self._columns()
            if not there and self._create_table:
                self._define(fit.create())
                there = self._columns()
            if there and self._evolve and (additions := fit.evolve(there)):
                self._define(*additions)
                there = self._columns()
            fit.check(there, wanted.takes)
            if self._shape.keyed:
                wanted.check_key([set(found) for (found,) in self._ask(_UNIQUE, self._shape.name)])
        wanted.there = tuple(f"{column.name} {column.shown}" for column in there)
        self._target, self._stage = wanted, None

    def how(self, rows: DataFrame, *, held: bool) -> str:
        if self._visible == "partition" and not held and narrow.keeps_partitions(rows):
            return "each task copies its partition's rows and moves its offset in one transaction"
        asked = 'visible="batch"' if self._visible == "batch" else None
        reason = asked or ("the batch is held" if held else "the plan moves rows between tasks")
        return f"tasks copy into a staging table, one transaction publishes the batch ({reason})"

    def write(self, batch: Batch, rows: DataFrame) -> None:
        target = self._prepared(rows)
        refuse_conflict(self.load(), batch)
        if self._visible == "partition" and narrow.one_task_per_range(rows, len(batch.ranges)):
            self._write_partitions(batch, rows, target)
        else:
            self._write_batch(batch, rows, target, None)

    def write_apart(self, batch: Batch, rows: DataFrame, quarantine: Quarantine) -> None:
        refuse_conflict(self.load(), batch)
        self._write_batch(batch, rows, self._prepared(rows), quarantine)

    def _prepared(self, rows: DataFrame) -> _Target:
        if self._target is None or self._target.schema != rows.schema:
            self.prepare(rows.schema)
        assert self._target is not None
        return self._target

    def _write_partitions(self, batch: Batch, rows: DataFrame, target: _Target) -> None:
        """1. claim the pipeline; 2. per task, in its own transaction, rows and offset; 3. note the batch."""
        from headrace.sinks import postgres_tasks as tasks

        self._take_over(batch)
        work = tasks.ByPartition(self._dsn, self._pipeline, self._claim, batch.ranges, **target.by_partition())
        with self._unless_taken_over():
            tasks.run(target.lines(batch, rows), work)
        reach("postgres: partitions written")
        with self.transaction() as connection:
            state = sql.read(connection, self._pipeline)
            if self._claimed(connection):
                # Each task has moved its own offset; one that was moved by hand since then stays so.
                noted = replace(state.progress.advanced(batch), offsets=state.progress.offsets)
                sql.write(connection, self._pipeline, state, replace(state, progress=noted))
        reach("postgres: committed")

    def _write_batch(self, batch: Batch, rows: DataFrame, target: _Target, quarantine: Quarantine | None) -> None:
        """1. claim the pipeline; 2. fill the staging table; in one transaction 3. publish it, 4. store dead letters and
        5. move the offsets."""
        from headrace.sinks import postgres_tasks as tasks

        self._take_over(batch)
        stage = self._staging(target)
        most = None if quarantine is None else quarantine.most
        work = tasks.ByAttempt(self._dsn, f"COPY {stage} ({listed(target.staged)}) FROM STDIN", most)
        with self._unless_taken_over():
            reports = tasks.run(target.lines(batch, rows, origins=quarantine is not None), work)
        reach("postgres: staged")
        letters = []
        if quarantine is not None:
            place = f"table {self._shape.table}"
            quarantine.refuse([Refusal(origin, why, place) for r in reports for origin, why in r.refused])
            letters = list(quarantine.settled())
        with self.transaction() as connection:
            if not self._claimed(connection):
                raise self._taken_over()  # and the staging table is gone
            state = sql.read(connection, self._pipeline)
            after = state.committed(batch)
            self._publish(connection.driver, stage, target, reports)
            if quarantine is not None and quarantine.table is not None:
                self._store_letters(connection, quarantine.table, letters)
            reach("postgres: published")
            sql.write(connection, self._pipeline, state, after)
        reach("postgres: committed")
        self._empty(stage)

    def _take_over(self, batch: Batch) -> None:
        """From the first batch on no task of an earlier run commits. A run that has been taken over from stops."""
        with self.transaction() as connection:
            state = sql.read(connection, self._pipeline)
            state.committed(batch)  # or OffsetConflict
            if state.progress.pending is not None:
                # Taken over from another store. Once a task has moved its offset it could not be repeated as it is.
                sql.write(
                    connection, self._pipeline, state, replace(state, progress=replace(state.progress, pending=None))
                )
            first = not self._claims
            if first:
                connection.execute(_CLAIM, [self._pipeline, self._claim])
            elif not self._claimed(connection):
                raise self._taken_over()
        self._claims = True
        if first:
            with self._translated():
                self._clear_staging()
        reach("postgres: claimed")

    @contextmanager
    def _unless_taken_over(self) -> Iterator[None]:
        """Whether tasks failed because of another run is told by the claim, not by how they failed."""
        try:
            yield
        except (OffsetConflict, RetriableError) as error:
            with self.transaction() as connection:
                ours = self._claimed(connection)
            if not ours:
                raise self._taken_over() from error
            # Nobody else may move offsets: a commit of our own, whose answer was lost, has come through late.
            raise RetriableError(error.message, hint=error.hint) from error

    def _claimed(self, connection: Any) -> bool:
        found = connection.execute("SELECT claim FROM headrace_claims WHERE pipeline = ?", [self._pipeline]).fetchall()
        return bool(found == [(self._claim,)])

    def _taken_over(self) -> OffsetConflict:
        return OffsetConflict(
            f"another run of {self._pipeline} has taken over", hint="let one of them finish, or stop it"
        )

    def _publish(self, driver: Any, stage: str, target: _Target, reports: Sequence[Report]) -> None:
        """Only what the attempts left that Spark counts: one that was reported failed may have committed as well."""
        from headrace.sinks.postgres_tasks import bad_row

        psycopg = require("psycopg", extra="postgres")
        attempts = ", ".join(str(report.attempt) for report in reports if report.rows)
        if not attempts:
            return
        ours = f"(SELECT {listed(target.staged)} FROM {stage} WHERE {_ATTEMPT} IN ({attempts}))"
        ((there,),) = driver.execute(f"SELECT count(*) FROM {ours} AS s").fetchall()
        if there != sum(report.rows for report in reports):
            # The table is unlogged: a server that crashed has emptied it.
            raise RetriableError(f"{self!r}: the staging table has lost rows; was the server restarted?")
        try:
            for statement in self._shape.merge(ours, target.columns):
                driver.execute(statement)
        except psycopg.errors.UniqueViolation as error:
            raise ConfigError(
                f"{self!r}: a row is there already: {error.diag.message_detail or error}",
                hint='mode="upsert" with key=… puts a row in place of the one before it',
            ) from error
        except psycopg.errors.CardinalityViolation as error:
            raise ConfigError(
                f"{self!r}: two rows of one batch have the same key and nothing says which is newer",
                hint=f"keep {METADATA} in the transform, or one row per key",
            ) from error
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            # Such as a foreign key: seen when the batch is published, and not row by row.
            raise bad_row(error, hint="correct the rows in the transform, or what they refer to") from error

    def _staging(self, target: _Target) -> str:
        if self._stage is None:
            schema, dot, _ = self._shape.name.rpartition(".")
            name = f"{schema}{dot}{quoted(self._stage_prefix() + uuid.uuid4().hex[:8])}"
            with self._translated():
                self._connection.execute(target.staging(name, self._columns(), self._checks()))
            self._stage = name
        return self._stage

    def _empty(self, stage: str) -> None:
        """Rows of attempts that did not count may still be on their way: then a new table is taken next time."""
        psycopg = require("psycopg", extra="postgres")
        try:
            self._connection.execute(f"BEGIN; SET LOCAL lock_timeout = '1s'; TRUNCATE {stage}; COMMIT")
        except psycopg.Error:
            self._stage = None
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")

    def _clear_staging(self) -> None:
        """Drop what other runs of this pipeline left. One that still lives finds out, and stops."""
        psycopg = require("psycopg", extra="postgres")
        like = self._stage_prefix().replace("_", r"\_") + "%"
        for (name,) in self._ask(_STAGING, like):
            try:
                self._connection.execute(f"BEGIN; SET LOCAL lock_timeout = '1s'; DROP TABLE IF EXISTS {name}; COMMIT")
            except psycopg.errors.LockNotAvailable:
                self._connection.execute("ROLLBACK")

    def _stage_prefix(self) -> str:
        mark = hashlib.sha256(f"{self._pipeline} {self._shape.table}".encode()).hexdigest()[:10]
        return f"headrace_staging_{mark}_"

    def _columns(self) -> list[Column]:
        return [Column(*found) for found in self._ask(_COLUMNS, self._shape.name)]

    def _checks(self) -> list[tuple[str, str, list[str]]]:
        return [(name, text, list(columns)) for name, text, columns in self._ask(_CHECKS, self._shape.name)]

    def _ask(self, query: str, *parameters: Any) -> list[Any]:
        if self._connection is None:
            raise ConfigError(f"{self!r} is used before open()")
        found: list[Any] = self._connection.execute(query, parameters).fetchall()
        return found


class _Target:
    """The table as rows of one schema need it."""

    def __init__(self, shape: Shape, schema: StructType) -> None:
        self.shape = shape
        self.schema = schema
        self.columns = shape.columns(schema.names)
        self.staged = shape.staged(schema.names)
        self.there: tuple[str, ...] = ()
        self.fields: dict[str, StructField] = {name: schema[name] for name in self.columns}

    def fit(self, sink: str) -> Fit:
        from headrace.sinks.postgres_types import column_type

        return Fit(self.shape, sink, {name: column_type(field) for name, field in self.fields.items()}, _EXTRA)

    def takes(self, name: str, column: Column) -> bool:
        from headrace.sinks.postgres_types import fits

        return fits(self.fields[name], column.kind)

    def check_key(self, unique: Sequence[set[str]]) -> None:
        if set(self.shape.key) not in unique:
            raise ConfigError(
                f"{self.shape.table} has no unique index on its key ({', '.join(self.shape.key)})",
                hint=f"CREATE UNIQUE INDEX ON {self.shape.name} ({listed(self.shape.key)})",
            )

    def lines(self, batch: Batch, rows: DataFrame, *, origins: bool = False) -> DataFrame:
        """The rows as lines for COPY, with each one's origin if asked for."""
        from pyspark.sql import functions

        from headrace.sinks.postgres_tasks import LINE
        from headrace.sinks.postgres_types import line

        utc = times_in_utc(rows)
        stored = self.shape.frame(batch, rows)
        if not origins:
            columns = [column_of(name) for name in stored.columns]
            return stored.select(line(columns, stored.schema.fields, utc=utc).alias(LINE))
        place = [functions.lit(None).cast(kind) for kind in ("string", "int", "bigint")]
        if METADATA in rows.columns:
            place = [functions.col(f"{METADATA}.{name}") for name in ("topic", "partition", "offset")]
        both = self.shape.frame(batch, rows, *(p.alias(f"headrace_{n}") for n, p in enumerate(place)))
        columns = [column_of(name) for name in stored.columns]
        text = line(columns, stored.schema.fields, utc=utc).alias(LINE)
        return both.select(text, *(f"headrace_{number}" for number in range(len(place))))

    def by_partition(self) -> dict[str, Any]:
        """How a task writes straight into the table."""
        if not self.shape.keyed:
            return {"copy": f"COPY {self.shape.name} ({listed(self.columns)}) FROM STDIN"}
        mark = hashlib.sha256(f"{self.shape.name} {self.staged} {self.there}".encode()).hexdigest()[:10]
        table = f"headrace_rows_{mark}"
        extra = ", ".join(f"NULL::{_EXTRA[name]} AS {name}" for name in (ORIGIN, OFFSET, DELETED))
        empty = f"SELECT {listed(self.columns)}, {extra} FROM {self.shape.name} LIMIT 0"
        return {
            # Once per session, not per batch: every one leaves dead rows in the catalogue.
            "before": (
                "SET LOCAL client_min_messages = warning",
                f"CREATE TEMP TABLE IF NOT EXISTS {table} ON COMMIT DELETE ROWS AS {empty}",
                *(f"ALTER TABLE {table} ALTER COLUMN {quoted(name)} SET NOT NULL" for name in self.shape.key),
            ),
            "copy": f"COPY {table} ({listed(self.staged)}) FROM STDIN",
            "after": tuple(self.shape.merge(table, self.columns)),
        }

    def staging(self, name: str, there: Sequence[Column], checks: Sequence[tuple[str, str, list[str]]]) -> str:
        """SQL for a table that refuses what the target would refuse, so that it is found row by row."""
        extra = "".join(f", NULL::{_EXTRA[n]} AS {n}" for n in self.staged if n in _EXTRA)
        empty = f"SELECT {listed(self.columns)}{extra} FROM {self.shape.name} LIMIT 0"
        statements = [
            f"CREATE UNLOGGED TABLE {name} WITH (autovacuum_enabled = false) AS {empty}",
            f"ALTER TABLE {name} ADD COLUMN {_ATTEMPT} bigint NOT NULL",
            f"ALTER TABLE {name} ALTER COLUMN {_ATTEMPT} SET DEFAULT current_setting('headrace.attempt')::bigint",
        ]
        # A record that deletes has nothing but its key.
        unless = f"{DELETED} OR " if self.shape.keyed else ""
        ours = set(self.columns)
        required = [column.name for column in there if column.strict and column.name in ours]
        rules = [(f"{column} is required", f"{quoted(column)} IS NOT NULL") for column in required]
        rules += [(rule, text) for rule, text, columns in checks if set(columns) <= ours]
        statements += [
            f"ALTER TABLE {name} ADD CONSTRAINT {quoted(rule[:60])} CHECK ({unless}({text}))" for rule, text in rules
        ]
        keys = self.shape.key if self.shape.keyed else ()
        statements += [f"ALTER TABLE {name} ALTER COLUMN {quoted(key)} SET NOT NULL" for key in keys]
        return "; ".join(statements)
