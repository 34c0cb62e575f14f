"""The contract of a sink. The guarantee a sink can give is its type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from headrace.core.offset_store import OffsetStore
from headrace.core.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.core.dead_letters import DeadLetter, DeadLetterBatch, RecordId
    from headrace.types import Batch

METADATA = "_kafka"
"""The struct column with each row's origin. A sink uses it when it is there and never stores it."""


class Sink(Resource, ABC):
    """Where rows go. A plain sink may be at-least-once or at-most-once.

    `spark_options` are settings that its session needs, where Headrace makes it; what a user gives wins over them.

    A pipeline calls `check_topics` when it is built. A run calls, in this order: `open` once; `prepare` with the schema
    of the rows, and again when a batch has another schema; `write` per batch; `close`. A sink that overrides `open` or
    `close` calls `super()`, which makes the next run prepare again.
    """

    spark_options: Mapping[str, str] = MappingProxyType({})
    needs_one_task_per_partition = True
    """Whether a task that has all rows of a partition, in the order of the log, is of use to it."""
    reads_all_rows = True
    """Whether `write` reads every row: what was read and written is counted on the way."""
    reads_rows_once = True
    """Whether `write` reads the rows once. If not, Spark caches them."""
    no_exactly_once_reason = "a repeated batch would be stored twice"
    """Why a plain sink cannot give exactly-once, for whoever asks for it."""
    accepts_partial_batches = True
    """Whether a batch may be repeated without those of its records that Kafka has deleted since: rows stand alone."""
    _prepared_schema: StructType | None = None

    @property
    def members(self) -> tuple[Sink, ...]:
        """The sinks that rows go to, each of its own: itself, if it is not made of others."""
        return (self,)

    @property
    def identity_columns(self) -> Sequence[str] | None:
        """The columns by which a repeated batch meets what it left before: the key, and those it is partitioned by.

        None: all of them. Their values must be the same each time that a batch is read.
        """
        return ()

    def check_topics(self, topics: Sequence[str] | None) -> None:
        """ConfigError if rows of these topics cannot be stored together; asked when a pipeline is built.

        None: they are not known ahead, and may be many.
        """

    def secrets(self) -> frozenset[str]:
        """What must not be shown of its settings, should it stand in an error of Spark's."""
        return frozenset()

    def writes_to_source_topic(self, bootstrap: str, reads: Callable[[str], bool]) -> str | None:
        """The topic it writes to, if that is one that a source at `bootstrap` reads. Asks nobody."""
        return None

    def loops_on(self, cluster: Callable[[], str], reads: Callable[[str], bool]) -> str | None:
        """The same of a source on the cluster with that id, before the sink is opened: one cluster has many addresses.

        A sink that writes to no Kafka need not ask. RetriableError if nobody answers.
        """
        return None

    def open(self, pipeline: str) -> Self:
        self._prepared_schema = None
        return self

    def close(self) -> None:
        self._prepared_schema = None

    def prepare(self, schema: StructType) -> None:
        """Get ready for rows of `schema`: create what is missing, where the settings allow it.

        ConfigError, showing both schemas, if the rows do not fit the table. `schema` may contain METADATA. Called
        through `ensure_prepared`: before anything is read, or, where the transform's columns are not known until
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
        """ConfigError, showing both schemas, if rows of `schema` would not fit what is there.

        For `headrace check`: reads only, and creates nothing. Needs no `open`. RetriableError if nobody answers.
        """

    def check_reachable(self) -> None:
        """RetriableError if nobody answers, ConfigError for what is wrong whatever the rows are.

        For `headrace check`, before Spark starts: as `check_target`, and within seconds. What the offset store of the
        pipeline would tell need not be asked again.
        """

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str | None:
        """In a few words, how `rows` would be written, where there is more than one way; else None.

        For `headrace check`, with the transform's result on no rows. Needs no `open`, reads only the plan and the
        columns of `rows`, and changes nothing. `cached`: Spark caches the batch before `write`, because it is read more
        than once (for dead letters, for expectations, or once per sink of a fan-out); then no task has the rows of one
        partition.
        """
        return None

    @abstractmethod
    def write(self, batch: Batch, rows: DataFrame) -> None:
        """Store the rows of one batch.

        Called once per batch, and again with the same ranges after a failure or a restart. Returns only
        when the rows are durable; raises RetriableError when trying again may help, ConfigError when it
        cannot. `rows` is lazy: reading it runs the transform on the executors.
        """


class IdempotentSink(Sink):
    """A sink for which the same batch twice leaves the same result as once."""

    accepts_partial_batches = False  # most recognise a batch as a whole

    def last_batch(self) -> int:
        """The id of the newest batch it remembers, where that is how a repeat is recognised.

        New batches are numbered above it, whatever the offset store says: ids never go back.
        """
        return 0


class TransactionalSink(Sink, OffsetStore):
    """A sink that keeps the offsets beside the rows: `write` moves both in one transaction.

    `write` compare-and-sets like `commit` does and raises OffsetConflict, with nothing written, when the
    offsets are not at the start of the batch. A run never calls `begin`: the transaction is the journal.
    """

    accepts_partial_batches = False


class RowRejectingSink(Sink):
    """A sink that can say of each row whether it takes it."""

    @abstractmethod
    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, quarantine: DeadLetterBatch) -> None:
        """Like `write`, but a row that cannot be stored goes to the quarantine, which is settled before the offsets
        move."""


class DeadLetterTableSink(RowRejectingSink):
    """A sink with tables of its own for dead letters, which are stored with the rows or not at all."""

    def holds_rows(self, table: str) -> bool:
        """Whether `table` is the one that rows go to, so that no dead letters can; asked when a pipeline is built."""
        return False

    @abstractmethod
    def letters(self, table: str) -> Sequence[DeadLetter]:
        """The dead letters in `table`, by origin. Needs `open`."""

    @abstractmethod
    def drop_dead_letters(self, table: str, origins: Sequence[RecordId]) -> None:
        """Forget these."""


def without_metadata(rows: DataFrame) -> DataFrame:
    """The columns that belong into the target."""
    return rows.drop(METADATA)
