"""Converts the events of a run to metrics."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from headrace import events
from headrace.core import metrics
from headrace.kafka.source_set import source_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.core.metrics import Metric
    from headrace.events import Event
    from headrace.kafka.source import Kafka
    from headrace.types import TopicPartition

_DEFAULT = "default"
"""The label of a cluster without a name."""
_HISTORY = 60
_MIN_INTERVAL = 5.0
"""Seconds between two observations of an end offset that are kept."""


class Recorder(Protocol):
    """Receives the values of metrics."""

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to a counter, set a gauge, or count a value of a histogram. `labels` are in the order of the metric."""


class EventMetrics:
    """An observer that records the metrics of one run. `group` is the label of its lag."""

    def __init__(
        self,
        name: str,
        sources: Mapping[str, Kafka],
        group: str,
        recorder: Recorder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._recorder = recorder
        self._clock = clock
        self._lag = _LagMetrics(sources, group, recorder)
        self._polled_at = clock()
        for metric in metrics.METRICS:
            if metric.kind is metrics.Kind.COUNTER and metric.labels == ("pipeline",):
                self._record(metric, 0)
        self._record(metrics.RUN_STARTED, self._polled_at)

    def __call__(self, event: Event) -> None:
        match event:
            case events.BatchStarted():
                self._polled_at = self._clock()
            case events.BatchDone():
                self._done(event)
            case events.BadRecordsDropped(count=count):
                self._record(metrics.BAD_RECORDS, count)
            case events.RecordsQuarantined(count=count):
                self._record(metrics.DEAD_LETTERS, count)
            case events.BatchSkipped():
                self._record(metrics.SKIPPED_BATCHES, 1)
            case events.BatchTimedOut():
                self._record(metrics.TIMEOUTS, 1)
            case events.Retrying():
                self._record(metrics.RETRIES, 1)
            case events.GapFound(lost=lost):
                self._record(metrics.LOST_OFFSETS, len(lost))
            case events.MirrorFailed():
                self._record(metrics.MIRROR_FAILURES, 1)
        self._lag.follow(event, self._polled_at)

    def _done(self, done: events.BatchDone) -> None:
        self._record(metrics.BATCHES, 1)
        self._record(metrics.RECORDS, len(done.batch) if done.records is None else done.records)
        self._record(metrics.ROWS, done.rows or 0)
        self._record(metrics.BYTES, done.bytes or 0)
        self._record(metrics.BATCH_SECONDS, done.seconds)
        self._record(metrics.LAST_BATCH, self._clock())
        for phase, seconds in (asdict(done.phases) if done.phases else {}).items():
            self._record(metrics.PHASE_SECONDS, seconds, phase)
        if done.scheduling_delay is not None:
            self._record(metrics.SCHEDULING_DELAY, done.scheduling_delay)
        if (delay := done.produce_delay) is not None:
            for quantile, seconds in (("0.5", delay.p50), ("0.99", delay.p99), ("1", delay.max)):
                self._record(metrics.PRODUCE_DELAY, seconds, quantile)

    def _record(self, metric: Metric, value: float, *labels: str) -> None:
        self._recorder.record(metric, value, self._name, *labels)


class _LagMetrics:
    """Offsets and lag under the names of kafka-lag-exporter. Only what changed is recorded."""

    def __init__(self, sources: Mapping[str, Kafka], group: str, recorder: Recorder) -> None:
        self._sources = sources
        self._group = group
        self._recorder = recorder
        self._offsets: dict[TopicPartition, int] = {}
        self._lags: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, EndTimes] = defaultdict(EndTimes)
        self._seconds: dict[TopicPartition, float] = {}
        self._clusters: dict[str, tuple[str, str]] = {}
        self._idle = False
        """Whether the run waits for records: it then polls the end offsets without an event."""

    def follow(self, event: Event, polled_at: float) -> None:
        """Handle an event. `polled_at` is the time of the last poll of the end offsets."""
        match event:
            case events.RunStarted(positions=positions) | events.PartitionsFound(positions=positions):
                self._offsets.update(positions)
            case events.BatchDone(batch=batch, partition_lag=lags, scheduling_delay=delay):
                if self._idle and delay is not None:
                    for ends in self._ends.values():
                        ends.extend(polled_at - delay)
                self._idle = False
                offsets = {r.at: r.until for r in batch.ranges}
                self._offsets.update(offsets)
                self._update(offsets.keys() | lags.keys() | self._lags.keys(), lags, polled_at)
            case events.CaughtUp():
                self._idle = True
                self._update(self._offsets.keys(), {}, polled_at)
            case events.BatchSkipped(batch=batch):
                self._offsets.update({r.at: r.until for r in batch.ranges})
            case events.GapFound(lost=lost, resumed_at=offset):
                self._offsets[lost.at] = offset

    def _update(self, changed: Iterable[TopicPartition], lags: Mapping[TopicPartition, int], polled_at: float) -> None:
        self._lags = dict(lags)
        for at in changed:
            offset, lag = self._offsets.get(at, 0), lags.get(at, 0)
            cluster, topic = self._cluster(at.topic)
            labels = (cluster, self._group, topic, str(at.partition))
            self._ends[at].add(polled_at, offset + lag)
            self._seconds[at] = polled_at - self._ends[at].time_of(offset) if lag else 0.0
            self._recorder.record(metrics.GROUP_OFFSET, offset, *labels)
            self._recorder.record(metrics.GROUP_LAG, lag, *labels)
            self._recorder.record(metrics.GROUP_LAG_SECONDS, self._seconds[at], *labels)
            self._recorder.record(metrics.LATEST_OFFSET, offset + lag, cluster, topic, str(at.partition))
        self._record_sums()

    def _record_sums(self) -> None:
        topics = dict.fromkeys((self._cluster(at.topic) for at in self._offsets), 0)
        for at, lag in self._lags.items():
            cluster, topic = self._cluster(at.topic)
            topics[cluster, topic] = topics.get((cluster, topic), 0) + lag
        for (cluster, topic), lag in topics.items():
            self._recorder.record(metrics.GROUP_TOPIC_SUM_LAG, lag, cluster, self._group, topic)
        for cluster in {cluster for cluster, _ in topics}:
            lags = {at: lag for at, lag in self._lags.items() if self._cluster(at.topic)[0] == cluster}
            seconds = [self._seconds[at] for at in lags]
            longest = math.nan if any(map(math.isnan, seconds)) else max(seconds, default=0.0)
            self._recorder.record(metrics.GROUP_SUM_LAG, sum(lags.values()), cluster, self._group)
            self._recorder.record(metrics.GROUP_MAX_LAG, max(lags.values(), default=0), cluster, self._group)
            self._recorder.record(metrics.GROUP_MAX_LAG_SECONDS, longest, cluster, self._group)

    def _cluster(self, topic: str) -> tuple[str, str]:
        """The name of the cluster, and the name of the topic in it."""
        if topic not in self._clusters:
            owner = source_for_topic(self._sources, topic)
            source = self._sources[owner] if owner is not None else None
            self._clusters[topic] = (
                (source.cluster or _DEFAULT, source.cluster_topic_name(topic)) if source else (_DEFAULT, topic)
            )
        return self._clusters[topic]


class EndTimes:
    """The end offsets of a partition that were observed in the last minutes, with their times."""

    def __init__(self) -> None:
        self._observed: deque[tuple[float, int]] = deque(maxlen=_HISTORY)

    def __len__(self) -> int:
        return len(self._observed)

    def add(self, time: float, end: int) -> None:
        if len(self._observed) > 1 and time - self._observed[-2][0] < _MIN_INTERVAL:
            self._observed.pop()
        self._observed.append((time, end))

    def extend(self, time: float) -> None:
        """Record that the end did not change until `time`."""
        if self._observed:
            self.add(time, self._observed[-1][1])

    def time_of(self, offset: int) -> float:
        """The interpolated time when the end passed `offset`; NaN if that was before the first observation."""
        for (before, low), (after, high) in pairwise(self._observed):
            if low <= offset < high:
                return before + (after - before) * (offset - low) / (high - low)
        return math.nan
