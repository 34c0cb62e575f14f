"""The contract of a sink. The type of a sink determines the guarantees that it can give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from headrace.core.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.core.dead_letters import DeadLetter, DeadLetterBatch, RecordId
    from headrace.core.offset_store import OffsetStore
    from headrace.types import Batch

METADATA = "_kafka"
"""The struct column with each row's origin. A sink uses it if the rows have it and never stores it."""


class Sink(Resource, ABC):
    """Stores rows. A plain sink can be used with at-least-once and at-most-once.

    `spark_options` are settings for the session that Headrace creates; settings of the user override them.

    A pipeline calls `check_topics` when it is built. A run calls, in this order: `open` once; `prepare` with the schema
    of the rows, and again when a batch has another schema; `write` per batch; `close`. A sink that overrides `open` or
    `close` calls `super()`, which makes the next run prepare again.
    """

    spark_options: Mapping[str, str] = MappingProxyType({})
    needs_one_task_per_partition = True
    """Whether it writes better with one task per partition, each with all its rows in log order."""
    reads_all_rows = True
    """Whether `write` reads every row, so that Headrace can count the rows during the write."""
    reads_rows_once = True
    """Whether `write` reads the rows only once. If not, Spark caches them."""
    no_exactly_once_reason = "a repeated batch would be stored twice"
    """Why a plain sink cannot give exactly-once; part of the error message."""
    accepts_partial_batches = True
    """Whether a pending batch can be repeated without the records that Kafka has deleted since."""
    _prepared_schema: StructType | None = None

    @property
    def members(self) -> tuple[Sink, ...]:
        """The sinks that this one writes to; itself, unless it is a fan-out."""
        return (self,)

    @property
    def replaces_rows(self) -> bool:
        """Whether a row replaces the stored one with the same key, as the output mode update needs it."""
        return False

    @property
    def identity_columns(self) -> Sequence[str] | None:
        """The columns that identify a row when a batch is repeated: the key and the partition columns.

        None: all columns. Their values must be the same each time a batch is read.
        """
        return ()

    def check_topics(self, topics: Sequence[str] | None) -> None:
        """ConfigError if rows of these topics cannot be stored together; called when a pipeline is built.

        None: the topics are not known in advance, and there may be many.
        """

    def secrets(self) -> frozenset[str]:
        """Secret values of its settings, to be masked in error messages of Spark."""
        return frozenset()

    def writes_to_source_topic(self, bootstrap: str, reads: Callable[[str], bool]) -> str | None:
        """The topic it writes to, if a source at `bootstrap` reads that topic. Makes no request."""
        return None

    def writes_to_source_cluster(self, cluster: Callable[[], str], reads: Callable[[str], bool]) -> str | None:
        """The same for a source on the cluster whose id `cluster` returns: one cluster has many addresses.

        Called before `open`. A sink that does not write to Kafka need not call `cluster`. RetriableError if the cluster
        does not answer.
        """
        return None

    def open(self, pipeline: str) -> Self:
        self._prepared_schema = None
        return self

    def close(self) -> None:
        self._prepared_schema = None

    def prepare(self, schema: StructType) -> None:
        """Prepare for rows of `schema`: create what is missing, if the settings allow it.

        ConfigError, showing both schemas, if the rows do not fit the table. `schema` may contain METADATA. Called
        through `ensure_prepared`: before any record is read or, if the columns of the transform are unknown until
        then, before the first write.
        """

    def ensure_prepared(self, schema: StructType) -> None:
        """Call `prepare`, unless the sink was prepared for this schema since `open`.

        The engine calls it before each write; a sink whose `write` depends on `prepare` calls it as well.
        """
        if self._prepared_schema != schema:
            self.prepare(schema)
            self._prepared_schema = schema

    def check_target(self, schema: StructType) -> None:
        """ConfigError, showing both schemas, if rows of `schema` would not fit the target.

        For `headrace check`: reads only, creates nothing. Needs no `open`. RetriableError without an answer.
        """

    def check_reachable(self) -> None:
        """RetriableError if the server does not answer, ConfigError for errors that do not depend on the rows.

        For `headrace check`, before Spark starts: reads only, needs no `open`, returns within seconds. It need not
        repeat the checks of the pipeline's offset store.
        """

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str | None:
        """How `rows` would be written, in a few words; None if the sink writes in one way only.

        For `headrace check`, with the transform's result on no rows. Needs no `open`, reads only the plan and the
        columns of `rows`, and changes nothing. `cached`: Spark caches the batch before `write` because it is read more
        than once (dead letters, expectations, or a fan-out); then no task has exactly the rows of one partition.
        """
        return None

    @abstractmethod
    def write(self, batch: Batch, rows: DataFrame) -> None:
        """Store the rows of one batch.

        Called once per batch, and again with the same ranges after a failure or a restart. Returns when the rows are
        durable. Raises RetriableError if a retry may help, ConfigError if it cannot. `rows` is lazy: reading it runs
        the transform on the executors.
        """


class IdempotentSink(Sink):
    """A sink that can write the same batch twice with the same result."""

    accepts_partial_batches = False  # most of these sinks recognise only whole batches

    def last_batch(self) -> int:
        """The id of the newest batch it remembers, if it recognises a repeated batch by its number.

        New batches get higher ids, whatever the offset store contains: ids never go back.
        """
        return 0


class TransactionalSink(Sink):
    """A sink that stores the offsets with the rows: `write` stores both in one transaction.

    `write` is a compare-and-set like `OffsetStore.commit`: it raises OffsetConflict, with nothing written, if the
    stored offsets are not at the start of the batch. A run never calls `begin`: the transaction is the journal.
    """

    accepts_partial_batches = False

    @property
    @abstractmethod
    def offsets(self) -> OffsetStore:
        """The store of the offsets that `write` moves; always the same object.

        `open` and `close` of the sink open and close it, too. Commands that read or move offsets open it alone.
        """

    def open(self, pipeline: str) -> Self:
        self.offsets.open(pipeline)
        return super().open(pipeline)

    def close(self) -> None:
        super().close()
        self.offsets.close()


class RowRejectingSink(Sink):
    """A sink that can reject single rows."""

    @abstractmethod
    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        """Like `write`, but rejected rows go to `dead_letters`, which is flushed before the offsets move."""


class DeadLetterTableSink(RowRejectingSink):
    """A sink with tables for dead letters, stored in one transaction with the rows."""

    def is_row_table(self, table: str) -> bool:
        """Whether rows go to `table`, so that dead letters cannot; called when a pipeline is built."""
        return False

    @abstractmethod
    def read_dead_letters(self, table: str) -> Sequence[DeadLetter]:
        """The dead letters in `table`, by origin. Needs `open`, or `offsets.open_for_reading`."""

    @abstractmethod
    def drop_dead_letters(self, table: str, origins: Sequence[RecordId]) -> None:
        """Delete these dead letters."""


def without_metadata(rows: DataFrame) -> DataFrame:
    """The columns to be stored."""
    return rows.drop(METADATA)
