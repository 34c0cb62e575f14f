"""Writes a Structured Streaming query of the user's own into a sink, exactly once."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from headrace import events
from headrace.connectors.shared.file_store import file_store_at
from headrace.core.delivery import REPEATABLE, cannot_repeat
from headrace.core.sink import METADATA, IdempotentSink, Sink, TransactionalSink
from headrace.core.state import AuditEntry
from headrace.engine.structured.query_batch import Decision
from headrace.engine.structured.running_query import RunningQuery
from headrace.errors import ConfigError, HeadraceError, OffsetConflict
from headrace.runtime.batch_numbers import number_of_batch_zero
from headrace.runtime.event_messages import log
from headrace.runtime.heartbeat import RunPresence
from headrace.runtime.in_use import reserve
from headrace.runtime.pipeline import check_name
from headrace.spark.observation import observed_metric
from headrace.spark.persistence import persisted
from headrace.support.crashpoints import reach
from headrace.support.polling import wait_until
from headrace.support.redaction import without_secrets
from headrace.support.validation import check_instance
from headrace.types import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.engine.structured.query_batch import QueryBatch
    from headrace.events import Observer
    from headrace.types import Batch

_LISTENER_SECONDS = 2.0
"""Seconds that Spark may take to report that a frame was read."""
_BUSY_SECONDS = 5.0
"""Seconds to wait for a function that is writing a batch; then its query counts as active."""
_open: dict[str, ExactlyOnce] = {}
"""The functions of this process that have their sink open, by name."""
_OPENING = threading.Lock()


def exactly_once(sink: Sink, *, name: str, observer: Observer = log) -> ExactlyOnce:
    """A function for `foreachBatch` that writes each batch into `sink`, exactly once:

        df.writeStream.foreachBatch(hr.exactly_once(sinks.Postgres(dsn, "clicks"), name="clicks")).start()

    After a crash Spark repeats a batch that was written but is missing in its commit log; the sink recognises it.
    `name` is the name of the state in the sink, one per query. The sink is transactional or idempotent. With
    `outputMode("update")` it needs a key, by which a row replaces the earlier one.

    A query with a new checkpoint has a new id: its batches are stored after those of the earlier query.
    """
    check_instance("sink", sink, Sink, hint='sinks.Postgres(dsn, "clicks")')
    check_name(name)
    if len(sink.members) > 1:
        raise ConfigError(
            "exactly_once: expected one sink, got a fan-out",
            hint="one query with its own checkpoint per sink; or an hr.Pipeline",
        )
    if not isinstance(sink, TransactionalSink | IdempotentSink):
        raise cannot_repeat(sink, hint=REPEATABLE)
    return ExactlyOnce(sink, name, observer)


class ExactlyOnce:
    """Created by `hr.exactly_once`. The sink is open from the first batch to the end of the query."""

    def __init__(self, sink: TransactionalSink | IdempotentSink, name: str, observer: Observer) -> None:
        self._sink = sink
        self._name = name
        self._observe = observer
        self._query: RunningQuery | None = None
        """The query that has the sink open."""
        self._resources = ExitStack()
        self._presence: RunPresence | None = None
        self._progress = Progress()
        """What a transactional sink has stored."""
        self._batch_zero: int | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"exactly_once({self._sink!r}, name={self._name!r})"

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of one batch, unless the sink has them."""
        query = RunningQuery.of(rows)
        with self._lock:
            try:
                self._open_for(query, rows)
                self._write(query, query.batch(self._name, batch_id), rows)
            except BaseException as error:
                if self._is_open_for(query):
                    self.close()  # the query fails, too
                if (described := self._described(error)) is not error:
                    raise described from None
                raise
        reach("structured: batch done")

    def close(self) -> None:
        """Close the sink. Called when the query has ended; a next batch opens it again."""
        with self._lock:
            self._query = self._presence = self._batch_zero = None
            self._resources.pop_all().close()

    def close_unless_active(self) -> None:
        """Close the sink if its query has ended; OffsetConflict if it is active: the name belongs to one query."""
        in_use = OffsetConflict(
            f"{self._name} is in use by another active query", hint="another name= for each query, or stop that one"
        )
        if not self._lock.acquire(timeout=_BUSY_SECONDS):  # in a batch, or opening
            raise in_use
        try:
            if self._query is not None and self._query.active:
                raise in_use
            self.close()
        finally:
            self._lock.release()

    def _is_open_for(self, query: RunningQuery) -> bool:
        return self._query is not None and self._query.run == query.run

    def _open_for(self, query: RunningQuery, rows: DataFrame) -> None:
        if self._is_open_for(query):
            return
        self._check(query.output_mode, rows)
        with _OPENING:
            self.close_unless_active()
            if (earlier := _open.get(self._name)) is not None:
                earlier.close_unless_active()
            self._resources.enter_context(reserve(self._name, [self._sink]))
            _open[self._name] = self
            self._resources.callback(_open.pop, self._name)
            self._query = query
        self._resources.enter_context(self._sink)
        self._sink.open(self._name)
        if isinstance(self._sink, TransactionalSink):
            store = self._sink.offsets
            presence = self._presence = RunPresence(self._name, self._observe)
            self._resources.callback(presence.close)
            presence.admit(store)
            self._progress = store.load()
            presence.acquire(store)
            self._resources.callback(presence.release, store)
        threading.Thread(target=partial(self._close_after, query), name="headrace-query-end", daemon=True).start()

    def _close_after(self, query: RunningQuery) -> None:
        query.wait()
        with self._lock:
            if self._is_open_for(query):
                self.close()

    def _described(self, error: BaseException) -> BaseException:
        """The error without secrets. Its hint becomes part of the traceback, which Spark shows."""
        if isinstance(error, Exception):
            error = without_secrets(error, self._sink.secrets())
        if isinstance(error, HeadraceError) and error.hint:
            error.add_note(f"hint: {error.hint}")
        return error

    def _check(self, mode: str, rows: DataFrame) -> None:
        """ConfigError if the sink does not fit the output mode or the columns, which stay for as long as the query."""
        if mode == "complete":
            raise ConfigError(
                f"{self._name}: expected the output mode append or update, got complete: each batch has all rows again",
                hint='outputMode("update"), and a sink with key=…',
            )
        if mode == "update" and not self._sink.replaces_rows:
            raise ConfigError(
                f"{self._name}: output mode update, but {self._sink!r} has no key: every new value of a group would be"
                " one more row",
                hint='key="user": a row replaces the one with the same key; or outputMode("append")',
            )
        if METADATA in rows.columns:
            raise ConfigError(
                f"{self._name}: the column name {METADATA} is reserved by Headrace: a row of a query is identified by"
                " its batch",
                hint="rename it, or leave it out",
            )
        if missing := [column for column in self._sink.identity_columns or () if column not in rows.columns]:
            raise ConfigError(
                f"{self._name}: the rows have no column {missing[0]}, by which {self._sink!r} identifies a row",
                hint=f"key= with columns of the rows: {', '.join(rows.columns)}",
            )

    def _write(self, query: RunningQuery, batch: QueryBatch, rows: DataFrame) -> None:
        with nullcontext() if self._sink.reads_rows_once else persisted(rows):
            if isinstance(self._sink, TransactionalSink):
                self._write_with_offsets(self._sink, batch, rows)
            else:
                self._write_numbered(self._sink, query, batch, rows)

    def _write_numbered(self, sink: IdempotentSink, query: RunningQuery, batch: QueryBatch, rows: DataFrame) -> None:
        def newest() -> int:
            if found := sink.last_batch():
                self._report_start(batch)
            return found

        if self._batch_zero is None:
            checkpoint = file_store_at(rows.sparkSession, query.checkpoint)
            self._batch_zero = number_of_batch_zero(checkpoint, self._name, batch.number, newest)
        rows = self._versioned(rows, batch)
        observation = Observation()
        observed = rows.observe(observation, sql.expr("count(1) AS rows"))
        self._deliver(batch.numbered(self._batch_zero + batch.number), observed)
        if not _was_executed(observation):
            _execute(rows)

    def _write_with_offsets(self, sink: TransactionalSink, batch: QueryBatch, rows: DataFrame) -> None:
        if self._presence is not None:
            self._presence.between_batches(sink.offsets)
        decision = batch.decide(self._progress)
        if decision is Decision.SKIP:
            self._observe(events.Noted(f"{self._name}: batch {batch.number} is stored already: not written again"))
            _execute(rows)
            return
        if decision is Decision.START and self._progress.offsets:
            self._start(sink, batch)
        stored = batch.with_offsets(self._progress)
        self._deliver(stored, rows)
        self._progress = self._progress.advanced(stored)

    def _start(self, sink: TransactionalSink, batch: QueryBatch) -> None:
        """Set the offsets of an earlier query to the start of the batch."""
        after = batch.start_offsets
        before = {at: self._progress.offsets[at] for at in after if at in self._progress.offsets}
        change = AuditEntry(time.time(), "Structured Streaming", "new query", before, after, _start_note(batch))
        sink.offsets.set_offsets(self._progress, after, change, {batch.topic: batch.query})
        self._progress = sink.offsets.read()[0].progress
        self._report_start(batch)

    def _report_start(self, batch: QueryBatch) -> None:
        stays = f"rows of the query before it stay in {self._sink!r}"
        self._observe(events.Noted(f"{self._name}: {_start_note(batch)}; {stays}"))

    def _deliver(self, batch: Batch, rows: DataFrame) -> None:
        self._sink.ensure_prepared(rows.schema)
        reach("structured: before write")
        self._sink.write(batch, rows)
        reach("structured: written")

    def _versioned(self, rows: DataFrame, batch: QueryBatch) -> DataFrame:
        """The rows of a sink with keys, with the number of the batch as the version of their values."""
        if not self._sink.replaces_rows:
            return rows
        number = sql.lit(batch.number).cast("bigint")
        origin = {"topic": sql.lit(batch.topic), "partition": sql.lit(0), "offset": number}
        return rows.withColumn(METADATA, sql.struct(*[value.alias(field) for field, value in origin.items()]))


def _start_note(batch: QueryBatch) -> str:
    return f"the query {batch.query} starts with batch {batch.number}"


def _was_executed(observation: Observation) -> bool:
    """Whether the rows were read. A sink that recognises a repeated batch does not read them."""
    return wait_until(lambda: observed_metric(observation, "rows") is not None, _LISTENER_SECONDS)


def _execute(rows: DataFrame) -> None:
    """Execute the plan: the operators of a stateful query store the state of the batch while its rows are read."""
    rows.write.format("noop").mode("overwrite").save()
