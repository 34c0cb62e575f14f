"""The base class of sinks with one value per key, which tasks write on the executors.

The key of a row is the record that it came from, or columns of its own (a business key). Writing a batch twice leaves
the same values. With a business key the source offset is the version of a value: neither a replay nor an earlier run
that is still writing replaces a newer value with an older one.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from headrace.connectors.shared import log_order
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.connectors.shared.task_sink import TaskSink
from headrace.connectors.shared.topic_generations import several_topics_error
from headrace.connectors.sql.upsert import DELETED, OFFSET, ORIGIN, WriteMode
from headrace.core.sink import METADATA, IdempotentSink
from headrace.errors import ConfigError
from headrace.spark import task_alignment, tasks
from headrace.spark.origin_columns import ORIGIN_COLUMNS, origin_column_exprs
from headrace.spark.sql import column_of
from headrace.spark.tasks import Report
from headrace.support.crashpoints import reach
from headrace.support.validation import column_names, wrong_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from headrace.core.dead_letters import RecordId
    from headrace.types import Batch

_CHUNK_ROWS = 1_000
_NESTED = frozenset({"array", "map", "struct", "variant"})
_FIELDS = ("topic", "partition", "offset")
"""Key columns that are taken from the record, unless the rows have columns with these names."""


class Row(NamedTuple):
    """A value to store under a key.

    `source` is the topic id and partition that it came from, `version` the offset there: of two values with one key and
    source the one with the higher version counts. Both are None if the transform dropped the origin. `values` are all
    columns, including those of the key.
    """

    key: tuple[Any, ...]
    values: dict[str, Any]
    origin: RecordId | None
    source: str | None = None
    version: int | None = None
    deleted: bool = False


class Writer(Protocol):
    """Stores rows on an executor. A writer is pickled, so it connects when it is called (see `tasks.worker_cached`).

    The rows have different keys. On return all rows are durable except the returned ones, each with the reason why the
    store rejects it. Raises RetriableError for a temporary and ConfigError for a permanent error.
    """

    def __call__(self, rows: Sequence[Row]) -> Sequence[tuple[Row, str]]: ...


@dataclass(frozen=True, slots=True)
class RowKey:
    """The columns that identify a row, and the one that marks it as deleted."""

    key: tuple[str, ...]
    deleted: str | None = None

    @classmethod
    def of(cls, key: str | Sequence[str] | None, deleted: str | None, default: tuple[str, ...] = _FIELDS) -> RowKey:
        """Check and create a key. ConfigError if it is invalid."""
        hint = 'key="user", or key=("user", "day")'
        names = default if key is None else column_names("key", key, hint=hint)
        if len(set(names)) < len(names):
            raise wrong_value("key", "columns, each named once", key, hint)
        if deleted is not None and set(names) <= set(_FIELDS):
            raise ConfigError(f"deleted={deleted!r}: a row with a key of its own is never deleted", hint='key="user"')
        return cls(names, deleted)

    @property
    def is_record_id(self) -> bool:
        """Whether the key consists of fields of the record id."""
        return set(self.key) <= set(_FIELDS)

    def check_topics(self, topics: Sequence[str] | None) -> None:
        """ConfigError if records of different topics would have the same key."""
        several = topics is None or len(topics) > 1
        if self.is_record_id and "topic" not in self.key and several:
            count = "several" if topics is None else len(topics)
            raise ConfigError(
                f"rows of {count} topics cannot be distinguished by {', '.join(self.key)}",
                hint='key=("topic", "partition", "offset")',
            )

    def by_origin(self, names: Sequence[str]) -> bool:
        """Whether the key of rows with the columns `names` is their record id: then each row is written once."""
        return self.is_record_id and not set(self.key) <= set(names)

    def columns(self, names: Sequence[str]) -> list[str]:
        """The columns to store. ConfigError if a column of the key is missing."""
        if self.by_origin(names):
            if METADATA not in names:
                raise ConfigError(
                    f"the transform dropped {METADATA}, which the key ({', '.join(self.key)}) is taken from",
                    hint=f'keep {METADATA} in the transform, or name columns of the rows: key="…"',
                )
            if not {"partition", "offset"} <= set(self.key):
                raise ConfigError(
                    f"records cannot be distinguished by {', '.join(self.key)} alone, and the rows have no such column",
                    hint='key=("topic", "partition", "offset"); or name columns of the rows: key="…"',
                )
            own = [name for name in names if name != METADATA]
            if taken := [name for name in self.key if name in own]:
                raise ConfigError(
                    f"the rows have a column {taken[0]}, and the key ({', '.join(self.key)}) is that of the record",
                    hint='rename it in the transform, or name columns of the rows: key="…"',
                )
            return [*self.key, *own]
        return self._write_mode.columns(names)

    def types(self, schema: StructType) -> dict[str, DataType]:
        """The columns to store with their types."""
        origin: Any = schema[METADATA].dataType if METADATA in schema.names else None
        own = set(schema.names)
        return {
            name: schema[name].dataType if name in own else origin[name].dataType for name in self.columns(schema.names)
        }

    def frame(self, batch: Batch, rows: DataFrame) -> DataFrame:
        """The columns to store, then ORIGIN, OFFSET and DELETED where there is a business key, then ORIGIN_COLUMNS."""
        from pyspark.sql import functions as sql

        columns = self.columns(rows.columns)
        kinds = {field.name: field.dataType.typeName() for field in rows.schema}
        if nested := [name for name in self.key if kinds.get(name) in _NESTED]:
            raise ConfigError(
                f"{nested[0]}, which is in the key, is {kinds[nested[0]]}", hint="name columns with one value"
            )
        if not self.by_origin(rows.columns):
            return self._write_mode.frame(batch, rows, with_origin=True)
        self.check_topics(list(batch.topic_ids))
        stored = [
            column_of(name) if name in rows.columns else sql.col(f"{METADATA}.{name}").alias(name) for name in columns
        ]
        frame = rows.select(*stored, *origin_column_exprs(rows))
        # One task gets all rows of a record, and rejects several rows of one record.
        if not log_order.stays_in_task(batch, frame):
            return frame.repartition(*ORIGIN_COLUMNS).sortWithinPartitions(*ORIGIN_COLUMNS)
        return frame if task_alignment.preserves_row_order(frame) else frame.sortWithinPartitions(*ORIGIN_COLUMNS)

    @property
    def _write_mode(self) -> WriteMode:
        return WriteMode(
            "rows", "upsert" if self.deleted is None else "delete-aware", self.key, self.deleted or "deleted"
        )

    def describe_key(self, names: Sequence[str]) -> str:
        """A description of the key, for rows with the columns `names`."""
        key = ", ".join(self.key)
        if self.by_origin(names):
            return f"each row under a key of its own: {key} of its record"
        if METADATA in names:
            return f"a row replaces the one with the same {key}, unless that came from a later offset"
        return (
            f"a row replaces the one with the same {key}; the transform dropped {METADATA}, so a run that was"
            " overtaken can put an older value back"
        )


class KeyedSink(TaskSink, IdempotentSink):
    """The base class. A subclass for a system adds `prepare` and a writer of rows."""

    by_offset: ClassVar[bool] = False
    """Whether the offset alone is the version of a value under a business key (see `topic_generations`). Then a table
    has rows of one topic, and the highest offset of all its partitions counts."""
    accepts_partial_batches = True

    def __init__(self, identity: RowKey) -> None:
        self._identity = identity

    @property
    def replaces_rows(self) -> bool:
        return not self._identity.is_record_id

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._identity.key

    def check_topics(self, topics: Sequence[str] | None) -> None:
        self._identity.check_topics(topics)
        if self.by_offset and (topics is None or len(topics) > 1) and not self._identity.is_record_id:
            raise several_topics_error(repr(self), topics)

    @abstractmethod
    def _writer(self, batch: Batch, schema: StructType) -> Writer:
        """The writer for the rows of `batch`, which have this schema, possibly with METADATA."""

    def check_reachable(self) -> None:
        with self:
            self.open("")  # connects, and creates nothing

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str | None:
        return self._identity.describe_key(rows.columns)

    def _stored_schema(self, schema: StructType) -> StructType:
        """The columns of the rows, without those that a key by origin adds."""
        from pyspark.sql.types import StructType

        self._identity.columns(schema.names)  # or ConfigError
        internal = {METADATA, self._identity.deleted}
        return StructType([field for field in schema.fields if field.name not in internal])

    def _write_rows(self, batch: Batch, rows: DataFrame, limit: int | None) -> list[Report]:
        frame = self._identity.frame(batch, rows)
        task = _KeyedWriteTask(self._writer(batch, rows.schema), repr(self), self._identity.key, self.by_offset, limit)
        reports = tasks.run(frame, task)
        reach(f"{type(self).__name__.lower()}: rows written")
        return reports


@dataclass(frozen=True, slots=True)
class _KeyedWriteTask:
    """Passes the rows of one task to the writer, in chunks. `limit` rows may be rejected; None: none."""

    writer: Writer
    sink: str
    key: tuple[str, ...]
    by_offset: bool
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> Report:
        count = 0
        rejected = RejectedRows(self.sink, self.limit)
        before: RecordId | None = None
        for batch in batches:
            for chunk in _chunks(batch):
                rows = [row_of(origin, values, self.key) for origin, values in rejected.accept(chunk)]
                before = self._refuse_several(rows, before)
                for row in rows:
                    if None in row.key:
                        rejected.add(row.origin, null_in_key(row, self.key))
                self._store([row for row in rows if None not in row.key], rejected)
                count += len(chunk)
        return Report(count - len(rejected.rows), refused=rejected.rows)

    def _store(self, rows: Sequence[Row], rejected: RejectedRows) -> None:
        """Store the newest row of each key; if it is rejected, the next older one."""
        pending = _by_version(rows, by_offset=self.by_offset)
        while pending:
            not_stored = self.writer([versions.pop() for versions in pending.values()])
            for row, reason in not_stored:
                rejected.add(row.origin, reason)
            pending = {row.key: pending[row.key] for row, _ in not_stored if pending[row.key]}

    def _refuse_several(self, rows: Sequence[Row], before: RecordId | None) -> RecordId | None:
        """ConfigError for several rows of one record under a key by origin. Such rows are adjacent."""
        for row in rows:
            if row.source is None and row.origin is not None and row.origin == before:
                raise ConfigError(
                    f"{self.sink}: several rows come from one record ({before}), and the key ({', '.join(self.key)})"
                    " does not distinguish them: all but one would be lost",
                    hint='name columns that do: key=("…", "…"), for example with the position from posexplode',
                )
            before = row.origin
        return before


def _chunks(batch: Any) -> Iterator[Any]:
    for first in range(0, len(batch), _CHUNK_ROWS):
        yield batch.slice(first, _CHUNK_ROWS)


def row_of(origin: RecordId | None, values: dict[str, Any], key: tuple[str, ...]) -> Row:
    """Build a row from the columns of `RowKey.frame` without ORIGIN_COLUMNS."""
    source = values.pop(ORIGIN, None)
    version = values.pop(OFFSET, None)
    deleted = bool(values.pop(DELETED, False))
    return Row(tuple(_comparable(values[name]) for name in key), values, origin, source, version, deleted)


def null_in_key(row: Row, key: Sequence[str]) -> str:
    """The reason why a row with a NULL in its key is rejected."""
    return f"{key[row.key.index(None)]}, which is in the key, is NULL"


def _comparable(value: Any) -> Any:
    """Convert times to UTC: Python considers two times equal in the hour that a zone repeats."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        with suppress(OverflowError):  # the first and the last day that Python supports
            return value.astimezone(UTC)
    return value


def _by_version(rows: Sequence[Row], *, by_offset: bool) -> dict[Any, list[Row]]:
    """The rows of each key with the newest one last: the highest version of the source that occurred last."""
    by_key: dict[Any, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    for versions in by_key.values():
        if len(versions) > 1:
            last_seen = {} if by_offset else {row.source: index for index, row in enumerate(versions)}
            versions.sort(key=lambda row: (last_seen.get(row.source, 0), row.version or 0))
    return by_key
