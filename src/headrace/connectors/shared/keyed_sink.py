"""Sinks with one value per key, written by the tasks on the executors: what they have in common.

A row is told apart by the record it came from, or by columns of its own (a business key). The same batch twice leaves
the same values. With a business key the source offset is the version of a value: neither a replay nor a run that was
overtaken puts an older one over a newer one.
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
from headrace.connectors.shared.topic_generations import several_topics
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

_PIECE = 1_000
_NESTED = frozenset({"array", "map", "struct", "variant"})
_FIELDS = ("topic", "partition", "offset")
"""Names that stand for the record a row came from, in a key, where the rows have no columns of that name."""


class Row(NamedTuple):
    """What goes under one key. `source` and `version` are the partition it came from, of the topic by its id, and the
    offset there: of two values under one key from the same source the one with the higher version counts. Both are
    None where the transform dropped the origin. `values` are the columns, those of the key among them."""

    key: tuple[Any, ...]
    values: dict[str, Any]
    origin: RecordId | None
    source: str | None = None
    version: int | None = None
    deleted: bool = False


class Writer(Protocol):
    """Stores rows on an executor; pickled to get there, so it connects when it is called (see `tasks.kept`).

    No two of the rows have the same key. On return they are durable, but for those it gives back, each with the
    store's reason. RetriableError when trying again may help, ConfigError when it cannot.
    """

    def __call__(self, rows: Sequence[Row]) -> Sequence[tuple[Row, str]]: ...


@dataclass(frozen=True, slots=True)
class RowKey:
    """Which columns tell rows apart."""

    key: tuple[str, ...]
    deleted: str | None = None

    @classmethod
    def of(cls, key: str | Sequence[str] | None, deleted: str | None, default: tuple[str, ...] = _FIELDS) -> RowKey:
        """Checked, or ConfigError."""
        hint = 'key="user", or key=("user", "day")'
        names = default if key is None else column_names("key", key, hint=hint)
        if len(set(names)) < len(names):
            raise wrong_value("key", "columns, each named once", key, hint)
        if deleted is not None and set(names) <= set(_FIELDS):
            raise ConfigError(f"deleted={deleted!r}: a row with a key of its own is never deleted", hint='key="user"')
        return cls(names, deleted)

    @property
    def of_record(self) -> bool:
        """Whether the key may be that of the record, by its names."""
        return set(self.key) <= set(_FIELDS)

    def check_topics(self, topics: Sequence[str] | None) -> None:
        """ConfigError if keys of these topics would meet."""
        several = topics is None or len(topics) > 1
        if self.of_record and "topic" not in self.key and several:
            count = "several" if topics is None else len(topics)
            raise ConfigError(
                f"rows of {count} topics cannot be told apart by {', '.join(self.key)}",
                hint='key=("topic", "partition", "offset")',
            )

    def by_origin(self, names: Sequence[str]) -> bool:
        """Whether rows with the columns `names` are keyed by the record they came from: each is written once."""
        return self.of_record and not set(self.key) <= set(names)

    def columns(self, names: Sequence[str]) -> list[str]:
        """The columns that are stored. ConfigError if one of the key is missing."""
        if self.by_origin(names):
            if METADATA not in names:
                raise ConfigError(
                    f"the transform dropped {METADATA}, which the key ({', '.join(self.key)}) is taken from",
                    hint=f'keep {METADATA} in the transform, or name columns of the rows: key="…"',
                )
            if not {"partition", "offset"} <= set(self.key):
                raise ConfigError(
                    f"records are not told apart by {', '.join(self.key)} alone, and the rows have no such column",
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
        """The same, each with its type."""
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
            return self._write_mode.frame(batch, rows, traced=True)
        self.check_topics(list(batch.topic_ids))
        stored = [
            column_of(name) if name in rows.columns else sql.col(f"{METADATA}.{name}").alias(name) for name in columns
        ]
        frame = rows.select(*stored, *origin_column_exprs(rows))
        # So that several rows of one record meet, one after the other, in one task, which refuses them.
        if not log_order.stays_in_task(batch, frame):
            return frame.repartition(*ORIGIN_COLUMNS).sortWithinPartitions(*ORIGIN_COLUMNS)
        return frame if task_alignment.preserves_row_order(frame) else frame.sortWithinPartitions(*ORIGIN_COLUMNS)

    @property
    def _write_mode(self) -> WriteMode:
        return WriteMode(
            "rows", "upsert" if self.deleted is None else "delete-aware", self.key, self.deleted or "deleted"
        )

    def describe_key(self, names: Sequence[str]) -> str:
        """In words, for rows with the columns `names`."""
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
    """What a system adds: what `prepare` needs, and a writer of rows."""

    by_offset: ClassVar[bool] = False
    """Whether the offset alone, wherever a row came from, is the version of a value under a business key (see `eras`):
    then a table has rows of one topic, and of its partitions the highest offset counts."""
    accepts_partial_batches = True

    def __init__(self, identity: RowKey) -> None:
        self._identity = identity

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._identity.key

    def check_topics(self, topics: Sequence[str] | None) -> None:
        self._identity.check_topics(topics)
        if self.by_offset and (topics is None or len(topics) > 1) and not self._identity.of_record:
            raise several_topics(repr(self), topics)

    @abstractmethod
    def _writer(self, batch: Batch, schema: StructType) -> Writer:
        """For the rows of `batch`, which have this schema; METADATA may be in it."""

    def check_reachable(self) -> None:
        with self:
            self.open("")  # connects and creates nothing

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str | None:
        return self._identity.describe_key(rows.columns)

    def _stored_schema(self, schema: StructType) -> StructType:
        """The columns of the rows; not those that a key by origin adds."""
        from pyspark.sql.types import StructType

        self._identity.columns(schema.names)  # or ConfigError
        ours = {METADATA, self._identity.deleted}
        return StructType([field for field in schema.fields if field.name not in ours])

    def _write_rows(self, batch: Batch, rows: DataFrame, most: int | None) -> list[Report]:
        frame = self._identity.frame(batch, rows)
        task = _Task(self._writer(batch, rows.schema), repr(self), self._identity.key, self.by_offset, most)
        reports = tasks.run(frame, task)
        reach(f"{type(self).__name__.lower()}: rows written")
        return reports


@dataclass(frozen=True, slots=True)
class _Task:
    """Hand the rows of one task to the writer, piece by piece. `most` rows may be refused; None: not one."""

    writer: Writer
    sink: str
    key: tuple[str, ...]
    by_offset: bool
    most: int | None

    def __call__(self, batches: Iterator[Any]) -> Report:
        count = 0
        refusals = RejectedRows(self.sink, self.most)
        before: RecordId | None = None
        for batch in batches:
            for piece in _pieces(batch):
                rows = [row_of(origin, values, self.key) for origin, values in refusals.taken(piece)]
                before = self._refuse_several(rows, before)
                for row in rows:
                    if None in row.key:
                        refusals.add(row.origin, null_in_key(row, self.key))
                self._store([row for row in rows if None not in row.key], refusals)
                count += len(piece)
        return Report(count - len(refusals.found), refused=refusals.found)

    def _store(self, rows: Sequence[Row], refusals: RejectedRows) -> None:
        """The newest row of each key; where that one is refused, the next older one."""
        left = _by_age(rows, by_offset=self.by_offset)
        while left:
            refused = self.writer([several.pop() for several in left.values()])
            for row, why in refused:
                refusals.add(row.origin, why)
            left = {row.key: left[row.key] for row, _ in refused if left[row.key]}

    def _refuse_several(self, rows: Sequence[Row], before: RecordId | None) -> RecordId | None:
        """Rows of one record come one after the other; under a key that is the record's own they are one too many."""
        for row in rows:
            if row.source is None and row.origin is not None and row.origin == before:
                raise ConfigError(
                    f"{self.sink}: several rows come from one record ({before}), and the key ({', '.join(self.key)})"
                    " does not tell them apart: all but one would be lost",
                    hint='name columns that do: key=("…", "…"), for example with the position that posexplode gives',
                )
            before = row.origin
        return before


def _pieces(batch: Any) -> Iterator[Any]:
    for first in range(0, len(batch), _PIECE):
        yield batch.slice(first, _PIECE)


def row_of(origin: RecordId | None, values: dict[str, Any], key: tuple[str, ...]) -> Row:
    """From the columns of `Identity.frame` without ORIGIN_COLUMNS."""
    source = values.pop(ORIGIN, None)
    version = values.pop(OFFSET, None)
    deleted = bool(values.pop(DELETED, False))
    return Row(tuple(_comparable(values[name]) for name in key), values, origin, source, version, deleted)


def null_in_key(row: Row, key: Sequence[str]) -> str:
    """Why a row with a NULL in its key is refused."""
    return f"{key[row.key.index(None)]}, which is in the key, is NULL"


def _comparable(value: Any) -> Any:
    """Two times of the hour that a zone has twice are equal to Python, unless they are in UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        with suppress(OverflowError):  # the first and the last day that Python knows
            return value.astimezone(UTC)
    return value


def _by_age(rows: Sequence[Row], *, by_offset: bool) -> dict[Any, list[Row]]:
    """The rows of each key, the one that counts last: that with the highest version of the source seen last."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    for several in found.values():
        if len(several) > 1:
            seen = {} if by_offset else {row.source: place for place, row in enumerate(several)}
            several.sort(key=lambda row: (seen.get(row.source, 0), row.version or 0))
    return found
