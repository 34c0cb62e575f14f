"""The manual batch loop: iterates over batches, with the offsets of a pipeline but without a sink."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from headrace import events
from headrace.core.offset_store import OffsetStore
from headrace.core.planner import Limits, caught_up, reachable
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka.source_set import known_topics, refuse_skipping, sources_by_name
from headrace.runtime.event_messages import log
from headrace.runtime.heartbeat import RunPresence, refuse_second
from headrace.runtime.in_use import reserve
from headrace.runtime.metrics_export import MetricsExporter
from headrace.runtime.positions import PositionTracker
from headrace.runtime.retry import IDLE, Retry, retry_until_stopped
from headrace.runtime.signals import on_stop_signal
from headrace.support.crashpoints import reach
from headrace.support.validation import check_choice, check_instance
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.decoder import DecodedRows
    from headrace.engine.source_readers import RawBatch, SourceReaders
    from headrace.events import Observer
    from headrace.kafka.source import Kafka
    from headrace.runtime.heartbeat import Rival
    from headrace.runtime.source_states import SourceState
    from headrace.types import Batch, Range

_Result = TypeVar("_Result")


class StreamBatch:
    """One batch of a stream. It is journalled, so that it is repeated with the same ranges until it is committed."""

    def __init__(
        self,
        batch: Batch,
        inputs: SourceReaders,
        commit: Callable[[Batch], None],
        *,
        replay: bool,
        measure: bool = False,
    ) -> None:
        self._batch = batch
        self._inputs = inputs
        self._commit = commit
        self._measure = measure
        self._raw: RawBatch | None = None
        self._decoded: list[DecodedRows] = []
        self.replay = replay
        """Whether it was started before: its rows may be stored already."""
        self.committed = False

    def __repr__(self) -> str:
        return f"batch {self.id}: {counted(len(self), 'offset')}"

    def __len__(self) -> int:
        """Offsets covered: the records in the batch, or more on compacted and transactional topics."""
        return len(self._batch)

    @property
    def id(self) -> int:
        return self._batch.id

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The offset ranges that it reads, by partition."""
        return self._batch.ranges

    def rows(self) -> Any:
        """A DataFrame of the decoded columns and `_kafka`, or a dict of them by source. Lazy and repeatable."""
        frames = self.raw()
        decoded = {name: reader.decoder.decode(frames[name]) for name, reader in self._inputs.by_name.items()}
        self._decoded = list(decoded.values())
        return self._inputs.transform_argument({name: rows.rows for name, rows in decoded.items()})

    def raw(self) -> dict[str, DataFrame]:
        """The undecoded records, by source."""
        from headrace.engine.source_readers import RawBatch

        self._raw = RawBatch(self._inputs, self._batch, measure=self._measure)
        return self._raw.frames

    def dropped(self) -> int:
        """The number of bad records that were left out, as far as its rows have been read."""
        return sum(decoded.dropped() for decoded in self._decoded)

    def bytes_each(self) -> float | None:
        """Mean size of a record, as far as they have been read. None if it was not measured."""
        return self._raw.bytes_each() if self._raw else None

    def commit(self) -> None:
        """Move the offsets to the end of the batch. OffsetConflict if another run has moved them."""
        if self.committed:
            raise ConfigError(f"batch {self.id} was committed before", hint="commit() once at the end of the loop")
        self._commit(self._batch)
        self.committed = True


class Stream:
    """Created by `hr.stream`. Iterate over it once, preferably inside `with`, which translates errors of Spark."""

    def __init__(
        self,
        name: str,
        inputs: SourceReaders,
        sources: list[SourceState],
        store: OffsetStore,
        limits: Limits,
        until: Literal["caught-up"] | None,
        observer: Observer,
        rival: Rival = "stop",
        metrics: AbstractContextManager[Observer] | None = None,
    ) -> None:
        self._name = name
        self._metrics = metrics
        self._inputs = inputs
        self._store = store
        self._until = until
        self._observer = observer
        self._measure = limits.max_bytes is not None
        self._batch: Batch | None = None
        """The batch in flight, or the last one."""
        self._stop = threading.Event()
        presence = RunPresence(name, self._observe, rival, self._stop.wait)
        self._positions = PositionTracker(name, sources, limits, self._observe, presence=presence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, HeadraceError) or self._batch is None:
            return
        if bad_record := self._inputs.locate_bad_record(self._batch, error):
            raise bad_record from error

    def _observe(self, event: events.Event) -> None:
        self._observer(event)

    def stop(self) -> None:
        """End the loop after the batch in flight. Thread-safe."""
        self._stop.set()

    def __iter__(self) -> Iterator[StreamBatch]:
        with (
            on_stop_signal(lambda _: self.stop()),
            reserve(self._name, [self._store]),
            self._metrics or nullcontext() as record,
            self._store.open(self._name) as store,
        ):
            if record is not None:
                self._observer = events.combine(self._observer, record)
            try:
                if self._positions.open(store):
                    yield from self._batches(store)
            finally:
                self._positions.release(store)
                self._positions.close()

    def _batches(self, store: OffsetStore) -> Iterator[StreamBatch]:
        positions = self._positions
        if positions.progress.pending is not None:
            yield from self._replay_pending(positions.progress.pending, store)
        self._retry(positions.refresh_metadata, store)
        targets = positions.ends if self._until else None
        while not self._stop.is_set():
            if targets is not None and caught_up(positions.progress, reachable(targets, positions.ends)):
                return
            batch = self._retry(lambda: positions.next_batch(wait=targets is None), store)
            if batch is not None:
                reach("stream: before begin")
                if self._retry(partial(_true_after, store.begin, batch), store) is None:
                    return
                reach("stream: begun")
                yield from self._yield_batch(batch, store, replay=False)
            else:
                self._stop.wait(IDLE)
            self._retry(positions.poll_ends, store)

    def _replay_pending(self, pending: Batch, store: OffsetStore) -> Iterator[StreamBatch]:
        """Return the pending batch of an earlier loop, unless its records are gone."""
        if self._positions.ignores_stored_offsets:
            return  # the first refresh of metadata drops it
        readable = self._retry(lambda: [self._positions.readable(pending, parts=False)], store)
        if readable == [None]:
            self._commit(pending, store)
            self._positions.done(pending)
        elif not self._stop.is_set():
            yield from self._yield_batch(pending, store, replay=True)

    def _yield_batch(self, batch: Batch, store: OffsetStore, *, replay: bool) -> Iterator[StreamBatch]:
        began = self._positions.clock()
        self._batch = batch
        self._observe(events.BatchStarted(batch, replay))
        self._inputs.start_batch()
        self._fetch_schemas(batch, store)
        commit = partial(self._commit, store=store)
        handle = StreamBatch(batch, self._inputs, commit, replay=replay, measure=self._measure)
        yield handle
        if not handle.committed:
            raise ConfigError(
                f"batch {batch.id} was not committed before the next one was requested",
                hint="batch.commit() at the end of the loop; otherwise the next start repeats the batch",
            )
        seconds = self._positions.clock() - began
        self._positions.done(batch, seconds, handle.bytes_each())
        if dropped := handle.dropped():
            self._observe(events.BadRecordsDropped(batch, dropped))
        self._observe(
            events.BatchDone(batch, seconds, self._positions.lag, partition_lag=self._positions.partition_lags)
        )

    def _fetch_schemas(self, batch: Batch, store: OffsetStore) -> None:
        """Fetch the unknown schemas of the batch in advance: a loop cannot repeat a batch as a run does."""
        from headrace.engine.source_readers import RawBatch

        frames = RawBatch(self._inputs, batch).frames
        for name, reader in self._inputs.by_name.items():
            while reader.decoder.looks_up_schemas and not self._stop.is_set():
                try:
                    reader.decoder.validated(frames[name]).frame.selectExpr("count(error)").collect()
                    break
                except Exception as error:
                    if self._retry(partial(reader.decoder.fetch_missing_schemas, error, frames[name]), store) is None:
                        raise

    def _commit(self, batch: Batch, store: OffsetStore) -> None:
        def commit_unless_done() -> bool:
            self._positions.load(store)
            if any(self._positions.progress.offsets.get(r.at) != r.until for r in batch.ranges):
                store.commit(batch)
            return True  # otherwise the commit took effect, and only its response was lost

        def verify() -> bool:
            if self._positions.recreated(batch, deleted=False):
                # Record it, or raise DataLoss: some of the records may belong to the recreated topic.
                self._positions.readable(batch, parts=False)
            return True

        try:
            verify()
        except RetriableError:
            if self._retry(verify, store) is None:  # stopped: the batch is repeated at the next start
                raise
        try:
            store.commit(batch)
        except RetriableError:
            # None: stopped; the batch is repeated at the next start.
            if self._retry(commit_unless_done, store) is None:
                raise

    def _retry(self, call: Callable[[], _Result], store: OffsetStore) -> _Result | None:
        def reload() -> None:
            with suppress(RetriableError):  # the store knows whether a call whose response was lost took effect
                self._positions.load(store)

        policy = Retry().policy(self._until)
        return retry_until_stopped(call, self._stop.wait, self._observe, reload, policy=policy)


def _true_after(call: Callable[[Batch], None], batch: Batch) -> bool:
    """Call it; True tells the result of a retry from None, which means that it was stopped."""
    call(batch)
    return True


def stream(
    source: Kafka | Mapping[str, Kafka],
    *,
    offsets: OffsetStore,
    name: str | None = None,
    limits: Limits | None = None,
    until: Literal["caught-up"] | None = None,
    session: SparkSession | None = None,
    spark: Mapping[str, str] | None = None,
    observer: Observer = log,
    metrics: MetricsExporter | None = None,
    take_over: bool = False,
) -> Stream:
    """Iterate over batches in a loop of your own, and commit each one at its end:

        with hr.stream(source, offsets=stores.SQLite("offsets.db")) as batches:
            for batch in batches:
                rows = batch.rows()
                ...
                batch.commit()

    A batch that was not committed, because the loop or the process died, is repeated with exactly the same records:
    at-least-once, or exactly-once if your code recognises `batch.id` or the origins of rows. `name` is the name of
    the offsets, by default that of the topics. The loop ends after the batch in flight on SIGTERM or Ctrl-C, or, with
    `until="caught-up"`, when all records that existed at the start have been returned. A second loop with the same
    offsets is refused while the first is alive, unless `take_over` is set. `metrics` exports metrics of the loop, as
    for a run.
    """
    from headrace.engine.source_readers import SourceReaders
    from headrace.runtime.launch import open_sources
    from headrace.spark import session as sessions

    sources = sources_by_name(source)
    check_instance("offsets", offsets, OffsetStore, hint='offsets=stores.SQLite("offsets.db")')
    if until is not None:
        check_choice("until", until, ["caught-up"])
    if metrics is not None:
        check_instance("metrics", metrics, MetricsExporter, hint="metrics=hr.Metrics(port=9100)")
    refuse_skipping(sources, (limits or Limits()).longest_delay)
    offsets_name = name or _name(sources)
    rival: Rival = "take-over" if take_over else "stop"
    if rival == "stop" and session is None:
        with reserve(offsets_name, [offsets]):
            refuse_second(offsets_name, offsets)  # before the slow start of Spark
    active = session or sessions.create(spark or {})
    inputs = SourceReaders(active, source, f"headrace-{offsets_name}", whole_partitions=False)
    group = offsets.consumer_group(offsets_name) or offsets_name
    return Stream(
        offsets_name,
        inputs,
        open_sources(sources, f"headrace-{offsets_name}"),
        offsets,
        limits or Limits(),
        until,
        observer,
        rival,
        metrics.observe(offsets_name, sources, group) if metrics else None,
    )


def _name(sources: Mapping[str, Kafka]) -> str:
    topics = known_topics(sources)
    if topics is None:
        raise ConfigError("a stream over a pattern needs a name for its offsets", hint='name="clicks"')
    return "-".join(topics)[:100]
