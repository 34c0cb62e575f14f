"""Writes each batch to several sinks: reads the source once; each sink recognises a batch that it already has."""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from headrace.core.sink import IdempotentSink, Sink, TransactionalSink
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError, OffsetConflict
from headrace.support.crashpoints import reach
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.core.offset_store import OffsetStore
    from headrace.types import Batch


class Fanout(Sink):
    """Writes every batch to each of `sinks`, in order.

    If one sink fails, the batch is repeated and the other sinks do not change: an idempotent sink recognises the batch,
    and a transactional sink recognises it by its own offsets. A fan-out of only such sinks is idempotent.
    """

    needs_one_task_per_partition = False  # the batch is cached, and tasks that read a cache are not aligned with ranges
    reads_rows_once = False

    def __new__(cls, sinks: Sequence[Sink]) -> Self:
        given = sinks if isinstance(sinks, list | tuple) else ()
        exact = all(isinstance(sink, IdempotentSink | TransactionalSink) for sink in given)
        fanout: Self = object.__new__(IdempotentFanout if exact and cls is Fanout else cls)  # type: ignore[assignment]
        return fanout

    def __init__(self, sinks: Sequence[Sink]) -> None:
        if not isinstance(sinks, list | tuple) or not sinks or not all(isinstance(sink, Sink) for sink in sinks):
            raise ConfigError(
                f"Fanout: expected a list of sinks, got {masked(repr(sinks))}", hint="sinks.Fanout([one, other])"
            )
        if any(isinstance(sink, Fanout) for sink in sinks):
            raise ConfigError("Fanout: expected sinks that are not a Fanout, got one", hint="one list of all sinks")
        if unnamed := [sink for sink in sinks if not sink.identity]:
            kind = type(unnamed[0]).__name__
            raise ConfigError(
                f"Fanout: expected sinks with an identity, got {kind} without one: its state would have no name",
                hint=f'in {kind}: identity = "files /data"; the text of its earlier repr keeps the stored state',
            )
        self.accepts_partial_batches = all(sink.accepts_partial_batches for sink in sinks)
        self.spark_options = {name: value for sink in sinks for name, value in sink.spark_options.items()}
        self.reads_all_rows = all(sink.reads_all_rows for sink in sinks)
        # Each stores its state under its own name: two tables of one database must not share their offsets.
        self._sinks = {_mark(sink): sink for sink in sinks}
        if len(self._sinks) < len(sinks):
            raise ConfigError("Fanout: two of the sinks are the same", hint="leave one of them out")

    @property
    def identity(self) -> str:
        return f"sinks.Fanout([{', '.join(sink.identity for sink in self._sinks.values())}])"

    @property
    def members(self) -> tuple[Sink, ...]:
        return tuple(self._sinks.values())

    def check_topics(self, topics: Sequence[str] | None) -> None:
        for sink in self._sinks.values():
            sink.check_topics(topics)

    @property
    def identity_columns(self) -> Sequence[str] | None:
        """The columns for all sinks that write a repeated batch again; transactional sinks do not."""
        columns = [sink.identity_columns for sink in self._sinks.values() if not isinstance(sink, TransactionalSink)]
        return None if None in columns else tuple(dict.fromkeys(name for names in columns for name in names or ()))

    def secrets(self) -> frozenset[str]:
        return frozenset[str]().union(*(sink.secrets() for sink in self._sinks.values()))

    def writes_to_source_topic(self, bootstrap: str, reads: Callable[[str], bool]) -> str | None:
        return next(
            (topic for sink in self._sinks.values() if (topic := sink.writes_to_source_topic(bootstrap, reads))), None
        )

    def writes_to_source_cluster(self, cluster: Callable[[], str], reads: Callable[[str], bool]) -> str | None:
        return next(
            (topic for sink in self._sinks.values() if (topic := sink.writes_to_source_cluster(cluster, reads))), None
        )

    def open(self, pipeline: str) -> Self:
        try:
            for mark, sink in self._sinks.items():
                sink.open(f"{pipeline}.{mark}")
        except BaseException:
            self.close()
            raise
        return super().open(pipeline)

    def close(self) -> None:
        super().close()
        with ExitStack() as closing:
            for sink in self._sinks.values():
                closing.callback(sink.close)

    def prepare(self, schema: StructType) -> None:
        for sink in self._sinks.values():
            sink.ensure_prepared(schema)

    def check_reachable(self) -> None:
        for sink in self._sinks.values():
            if isinstance(sink, TransactionalSink):  # alone, such a sink would be checked as the offset store
                with sink.offsets as store:
                    store.open_for_reading("headrace-check")
            sink.check_reachable()

    def check_target(self, schema: StructType) -> None:
        for sink in self._sinks.values():
            sink.check_target(schema)

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str | None:
        ways = [
            f"{type(sink).__name__}: {way}"
            for sink in self._sinks.values()
            if (way := sink.describe_write(rows, cached=True))
        ]
        return "; ".join(ways) or None

    def write(self, batch: Batch, rows: DataFrame) -> None:
        for number, sink in enumerate(self._sinks.values(), start=1):
            if not (isinstance(sink, TransactionalSink) and _has_batch(sink.offsets, batch)):
                sink.write(batch, rows)
            reach(f"fanout: sink {number} written")


class IdempotentFanout(Fanout, IdempotentSink):
    """A fan-out whose sinks all store a repeated batch once."""

    def last_batch(self) -> int:
        return max(
            sink.last_batch() if isinstance(sink, IdempotentSink) else sink.offsets.load().last_batch
            for sink in self._sinks.values()
            if isinstance(sink, IdempotentSink | TransactionalSink)
        )


def _has_batch(store: OffsetStore, batch: Batch) -> bool:
    """Whether the sink of `store` already has `batch`. If not, this moves its offsets to the start of the batch."""
    progress = store.load()
    if progress.last_batch >= batch.id:
        if all(progress.offsets.get(r.at) == r.until for r in batch.ranges):
            return True
        raise OffsetConflict(
            f"batch {batch.id} was refused: {store!r} already has batch {progress.last_batch}",
            hint="another run of this pipeline is active; let one of them finish, or stop it",
        )
    moved = progress.behind(batch)
    recreated = any(progress.topic_ids.get(topic, known) != known for topic, known in batch.topic_ids.items())
    if moved or recreated:
        # The offsets of the pipeline were moved manually: set those of the sink to the same positions.
        before = {r.at: progress.offsets[r.at] for r in moved}
        after = {r.at: r.start for r in moved}
        change = AuditEntry(time.time(), "fanout", "follow", before, after, "the offsets of the pipeline were moved")
        store.set_offsets(progress, after, change, batch.topic_ids)
    return False


def _mark(sink: Sink) -> str:
    """The name under which the state of `sink` is stored. It must never change."""
    return hashlib.sha256(sink.identity.encode()).hexdigest()[:8]
