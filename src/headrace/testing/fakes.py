"""Fakes for unit tests without Kafka, Spark or a database: the real run loop with a cluster in memory.

| fake | stands for | hook to fail or to act |
|---|---|---|
| `FakeCluster` | Kafka: topics, offsets, topic ids | `before_request(number)` |
| `FakeEngine` | Spark: makes the rows of a batch and passes them to the sink | `rows`, `translate` |
| `FakeSink` and its subclasses | a sink, one class per type of sink | `before_write(batch)` |
| `FakeStore` | an offset store | `before_call(name, batch)` |
| `FakeClock` | the monotonic clock | `advance(seconds)` |

`Simulation` runs a pipeline on them. A hook that raises fails that call; `fail_first` creates one that fails a few
times.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from headrace.connectors.memory.offset_store import Memory
from headrace.connectors.shared.batch_ledger import LastBatch
from headrace.core.delivery import WriteResult
from headrace.core.planner import TopicLog
from headrace.core.sink import IdempotentSink, Sink, TransactionalSink
from headrace.kafka.subscription import Topics
from headrace.runtime.runner import Runner, Stop
from headrace.runtime.source_states import SourceState
from headrace.types import Batch, Progress, Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from headrace.core.offset_store import OffsetStore
    from headrace.core.state import State
    from headrace.events import Event
    from headrace.kafka.subscription import Subscription
    from headrace.runtime.delay_probe import DelayProbe
    from headrace.runtime.heartbeat import Rival
    from headrace.runtime.pipeline import Pipeline
    from headrace.runtime.runner import Summary

_Event = TypeVar("_Event")


def record_ids(batch: Batch) -> list[tuple[TopicPartition, int]]:
    """The partition and offset of every record of a batch, which `FakeEngine` passes to the sink as rows."""
    return [(r.at, offset) for r in batch.ranges for offset in range(r.start, r.until)]


def fail_first(times: int, error: BaseException) -> Callable[..., None]:
    """A hook that raises `error` at its first `times` calls."""
    calls = 0

    def hook(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error

    return hook


class FakeClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(eq=False)
class FakeCluster:
    """The offsets of a Kafka cluster, without record values. Change them to produce, expire or delete records."""

    end_offsets: dict[TopicPartition, int]
    """The next offset of each partition. A topic exists while it has a partition here."""
    beginning_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The first available offset; 0 for a partition that is not listed."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """Kafka's id of each topic; "id-1" for a topic that is not listed."""
    offsets_by_time: dict[TopicPartition, int] = field(default_factory=dict)
    """The response to each request for the first offset since a time."""
    uncommitted_ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The next offset including records of open transactions, for partitions where it is higher."""
    before_request: Callable[[int], object] | None = None
    """Called before each request, with the number of requests so far."""
    requests: int = 0

    def produce(self, partition: TopicPartition, records: int = 1) -> None:
        """Add records to a partition; creates the partition and its topic if they do not exist."""
        self.end_offsets[partition] = self.end_offsets.get(partition, 0) + records

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Delete the records below an offset, as retention does."""
        self.beginning_offsets[partition] = before

    def delete_topic(self, topic: str) -> None:
        for offsets in (self.end_offsets, self.beginning_offsets, self.offsets_by_time, self.uncommitted_ends):
            for partition in [partition for partition in offsets if partition.topic == topic]:
                del offsets[partition]

    def recreate_topic(self, topic: str, end_offsets: Mapping[int, int]) -> None:
        """Delete the topic and create it again, with another id and these end offsets by partition."""
        self.delete_topic(topic)
        self.topic_ids[topic] = self.topic_ids.get(topic, "id-1") + "-recreated"
        self.end_offsets.update({TopicPartition(topic, number): end for number, end in end_offsets.items()})

    def logs(self, subscription: Subscription) -> dict[str, TopicLog]:
        self._request()
        counts: dict[str, int] = {}
        for partition in self.end_offsets:
            counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
        if subscription.names is not None:
            counts = {topic: counts.get(topic, 0) for topic in subscription.names}
        wanted = sorted(set(subscription.wanted(counts)) & set(self.end_offsets))
        topics = subscription.names or sorted({partition.topic for partition in wanted})
        return {topic: self._log(topic, [at for at in wanted if at.topic == topic]) for topic in topics}

    def existing_logs(self, topics: Iterable[str]) -> dict[str, TopicLog]:
        return {topic: log for topic, log in self.logs(Topics(list(topics))).items() if log.ends}

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: log.topic_id for topic, log in self.existing_logs(topics).items()}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self._request()
        return {partition: self.end_offsets[partition] for partition in partitions}

    def at_time(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int]:
        self._request()
        return {at: self.offsets_by_time[at] for at in partitions if at in self.offsets_by_time}

    def lookup_times(
        self, requests: Sequence[Mapping[TopicPartition, float]], timeout: float
    ) -> list[dict[TopicPartition, tuple[int, float]]]:
        """Look up times in `offsets_by_time`; the timestamp of each record is the requested time."""
        self._request()
        known = self.offsets_by_time
        return [{at: (known[at], time) for at, time in times.items() if at in known} for times in requests]

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _log(self, topic: str, wanted: list[TopicPartition]) -> TopicLog:
        return TopicLog(
            self.topic_ids.get(topic, "id-1"),
            {at: self.beginning_offsets.get(at, 0) for at in wanted},
            {at: self.end_offsets[at] for at in wanted},
            tuple(sorted(at for at in self.end_offsets if at.topic == topic and at not in wanted)),
            {at: self.uncommitted_ends[at] for at in wanted if at in self.uncommitted_ends},
        )

    def _request(self) -> None:
        if self.before_request is not None:
            self.before_request(self.requests)
        self.requests += 1


@dataclass(eq=False)
class FakeEngine:
    """Passes rows to the sink, without Spark."""

    sink: Sink
    rows: Callable[[Batch], Any] = record_ids
    """Creates the rows of a batch. For a sink that reads a DataFrame, use `headrace.testing.rows`."""
    result: WriteResult = field(default_factory=WriteResult)
    """The result of each batch: bad records, sizes and counts."""
    translate: Callable[[Exception], Exception] = lambda error: error
    """Translates an exception of the sink to a HeadraceError, as the engine does with errors of Spark."""

    def prepare(self) -> None:
        """Do nothing: the columns are unknown before the first batch."""

    def write(self, batch: Batch) -> WriteResult:
        self.sink.write(batch, self.rows(batch))
        return self.result

    def translate_error(self, error: Exception) -> Exception:
        return self.translate(error)


@dataclass(eq=False)
class FakeSink(Sink):
    """A plain sink: keeps every row, so that it has a repeated batch twice."""

    before_write: Callable[[Batch], object] | None = None
    rows: list[Any] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    """The stored batches, in order."""
    opened: int = 0
    closed: int = 0

    def open(self, pipeline: str) -> Self:
        self.opened += 1
        return super().open(pipeline)

    def close(self) -> None:
        self.closed += 1
        super().close()

    def write(self, batch: Batch, rows: Any) -> None:
        if self.before_write is not None:
            self.before_write(batch)
        if not self._holds(batch):
            self.batches.append(batch)
            self.rows += rows

    def _holds(self, batch: Batch) -> bool:
        return False


class FakeIdempotentSink(FakeSink, IdempotentSink):
    """Recognises a repeated batch by its fingerprint, like a sink that uses it in file names."""

    def _holds(self, batch: Batch) -> bool:
        return batch.fingerprint in {stored.fingerprint for stored in self.batches}


@dataclass(eq=False)
class FakeNumberedSink(FakeSink, IdempotentSink):
    """Remembers only the id of the newest batch, like a table that stores it in its last commit."""

    newest: LastBatch = field(default_factory=LastBatch)

    def last_batch(self) -> int:
        return self.newest.id

    def _holds(self, batch: Batch) -> bool:
        if self.newest.holds(batch, "the sink"):
            return True
        self.newest = LastBatch(batch.id, batch.fingerprint)
        return False


class FakeStore(Memory):
    """An offset store in memory. Stores with the same `shared` dictionary have the same offsets."""

    def __init__(
        self,
        shared: dict[str, Any] | None = None,
        *,
        before_call: Callable[[str, Batch | None], object] | None = None,
    ) -> None:
        self.shared = {} if shared is None else shared
        """The stored state by pipeline; copy it for a backup."""
        super().__init__(self.shared)
        self.before_call = before_call
        """Called before `open`, `load`, `begin`, `commit` and `close` with the name, and the batch if there is one."""
        self.calls: list[str] = []

    def __copy__(self) -> FakeStore:
        return FakeStore(self.shared)

    def open(self, pipeline: str) -> Self:
        self._called("open")
        return super().open(pipeline)

    def close(self) -> None:
        self._called("close")
        super().close()

    def load(self) -> Progress:
        self._called("load")
        return super().load()

    def begin(self, batch: Batch) -> None:
        self._called("begin", batch)
        super().begin(batch)

    def commit(self, batch: Batch) -> None:
        self._called("commit", batch)
        super().commit(batch)

    def change(self, decide: Callable[[State], State]) -> None:
        """Replace the stored state, as another process or an operator might."""
        self._change(decide)

    def _called(self, name: str, batch: Batch | None = None) -> None:
        self.calls.append(name)
        if self.before_call is not None:
            self.before_call(name, batch)


@dataclass(eq=False)
class FakeTransactionalSink(FakeSink, TransactionalSink):
    """Stores rows and offsets together. A pipeline with this sink has no `offsets=`."""

    store: FakeStore = field(default_factory=FakeStore)

    @property
    def offsets(self) -> FakeStore:
        return self.store

    def write(self, batch: Batch, rows: Any) -> None:
        if self.before_write is not None:
            self.before_write(batch)
        self.store.commit(batch)
        self.batches.append(batch)
        self.rows += rows


class Simulation:
    """Runs a pipeline with the real loop on a `FakeCluster`, and with its own store and sink.

    A run waits as `retry=` and `refresh=` of the pipeline say, by the real clock, so give it short ones. It does not
    call the transform; test that with `headrace.testing.rows`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        cluster: FakeCluster | Mapping[TopicPartition, int],
        *,
        rows: Callable[[Batch], Any] = record_ids,
        on_event: Callable[[Event], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pipeline = pipeline
        self.cluster = cluster if isinstance(cluster, FakeCluster) else FakeCluster(dict(cluster))
        self.engine: Any = FakeEngine(pipeline.sink, rows)
        """Writes the batches: a FakeEngine, or your own object with the same methods."""
        self.events: list[Event] = []
        """The events of all runs."""
        self.on_event = on_event
        self.clock = clock
        self._stop = Stop()
        """Stops the current run, or the next one."""
        self._running = False

    @property
    def sink(self) -> Sink:
        return self.pipeline.sink

    @property
    def store(self) -> OffsetStore:
        """A second, open handle to the pipeline's store, as an operator or another run would have."""
        return copy.copy(self.pipeline.store).open(self.pipeline.name)

    @property
    def progress(self) -> Progress:
        """The stored progress: committed offsets and the pending batch."""
        return self.store.load()

    def restore(self, progress: Progress) -> None:
        """Store this progress in an empty store, as an earlier run would have left it."""
        positions = tuple(Range(at, offset, offset) for at, offset in progress.offsets.items())
        store = self.store
        store.commit(Batch(progress.last_batch, positions, progress.topic_ids))
        if progress.pending is not None:
            store.begin(progress.pending)

    def run(
        self,
        until: Literal["caught-up"] | None = "caught-up",
        *,
        fail_fast: bool = False,
        rival: Rival = "stop",
        idle: float = 0.001,
        stop: Stop | None = None,
        delays: DelayProbe | None = None,
    ) -> Summary:
        """Run until caught up or, with None, until stopped. Each call is a new run of the pipeline.

        `idle` is the number of seconds between two polls of the cluster while there is nothing to read.
        """
        outer = self._stop if self._running else None
        self._stop = stop or (Stop() if outer else self._stop)
        self._running = True
        try:
            return Runner(
                self.pipeline,
                [SourceState(source, self.cluster) for source in self.pipeline.sources.values()],
                self.engine,
                observer=self._observe,
                fail_fast=fail_fast,
                idle=idle,
                clock=self.clock,
                rival=rival,
                stop=self._stop,
                delays=delays,
            ).run(until)
        finally:
            self._stop, self._running = outer or Stop(), outer is not None

    def stop(self, reason: str = "stop()") -> None:
        """Stop the run after the batch in flight, from a hook or another thread; before a run, stop the next one."""
        self._stop.request(reason, self._observe)

    def stop_on(self, *kinds: type) -> None:
        """Stop at the first event of these types."""
        self.on_event = lambda event: self.stop() if isinstance(event, kinds) else None

    def events_of(self, kind: type[_Event]) -> list[_Event]:
        """The events of one type, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def _observe(self, event: Event) -> None:
        self.events.append(event)
        if self.on_event is not None:
            self.on_event(event)
