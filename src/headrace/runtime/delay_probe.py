"""Estimates the produce delay of some batches, in a separate thread."""

from __future__ import annotations

import logging
import math
import threading
import time
from itertools import zip_longest
from typing import TYPE_CHECKING

from headrace.core.produce_delay import RangeTimestamps, estimate
from headrace.kafka.source_set import source_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.events import ProduceDelay
    from headrace.runtime.source_states import SourceState
    from headrace.types import Batch, TopicPartition

INTERVAL = 10.0
"""Seconds between two batches that are measured."""
RETRY_INTERVAL = 1.0
"""The same after a response that was late or missing."""
MAX_PARTITIONS = 32
"""If a batch has more partitions, those with the most records are measured."""
_TIMEOUT = 2.0
_LOG = logging.getLogger("headrace")


class DelayProbe:
    """Looks up timestamps while a batch is being written, so that the batch never waits for them.

    An estimate that is not ready when the batch is done is dropped; a batch one second later is measured instead.
    """

    def __init__(
        self,
        sources: Sequence[SourceState],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._sources = {number: state.source for number, state in enumerate(sources)}
        self._clusters = [state.cluster for state in sources]
        self._clock = clock
        self._wall_clock = wall_clock
        self._next_at = -math.inf
        self._batch: Batch | None = None
        self._thread: threading.Thread | None = None
        self._timestamps: list[RangeTimestamps] | None = None

    def start(self, batch: Batch) -> None:
        """Start measuring a batch, if it is time."""
        now = self._clock()
        if now < self._next_at or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_at, self._batch, self._timestamps = now + INTERVAL, batch, None
        self._thread = threading.Thread(target=self._probe, args=(batch,), name="headrace-delay", daemon=True)
        self._thread.start()

    def finish(self, batch: Batch) -> ProduceDelay | None:
        """The delay of a batch that has just been stored; None if it was not measured, or if the responses are late."""
        if self._batch is not batch:
            return None
        self._batch = None
        if self._timestamps is None:
            self._next_at = self._clock() + RETRY_INTERVAL
            return None
        return estimate(self._timestamps, self._wall_clock())

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _probe(self, batch: Batch) -> None:
        try:
            now = self._wall_clock()
            largest = sorted((r for r in batch.ranges if len(r)), key=len, reverse=True)[:MAX_PARTITIONS]
            timestamps = {r.at: RangeTimestamps(r, now) for r in largest}
            while lookups := {at: times for at, known in timestamps.items() if (times := known.next_lookups())}:
                for at, time_, answer in self._look_up(lookups):
                    timestamps[at].add(time_, answer)
            self._timestamps = list(timestamps.values())
        except Exception as error:
            _LOG.debug("the produce delay of batch %d is not known: %s", batch.id, error)

    def _look_up(
        self, lookups: Mapping[TopicPartition, Sequence[float]]
    ) -> Sequence[tuple[TopicPartition, float, tuple[int, float] | None]]:
        """Look up the first record at or after each time. A request has one time per partition."""
        results: list[tuple[TopicPartition, float, tuple[int, float] | None]] = []
        for number, cluster in enumerate(self._clusters):
            in_cluster = {at: t for at, t in lookups.items() if source_for_topic(self._sources, at.topic) == number}
            requests = [
                {at: time_ for at, time_ in zip(in_cluster, times, strict=True) if time_ is not None}
                for times in zip_longest(*in_cluster.values())
            ]
            for request, answers in zip(requests, cluster.lookup_times(requests, _TIMEOUT), strict=True):
                results += [(at, time_, answers.get(at)) for at, time_ in request.items()]
        return results
