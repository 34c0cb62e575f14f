"""Estimates the produce delay of a batch now and then, in a thread beside it."""

from __future__ import annotations

import logging
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
"""Seconds from one batch that is looked at to the next."""
MAX_PARTITIONS = 32
"""Of a batch with more, those with the most records."""
_TIMEOUT = 2.0
_LOG = logging.getLogger("headrace")


class DelayProbe:
    """Looks up timestamps while a batch is being written, so the batch waits for nothing.

    An estimate that is not ready when the batch is done is dropped, and the next batch gets one.
    """

    def __init__(
        self,
        feeds: Sequence[SourceState],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._sources = {number: feed.source for number, feed in enumerate(feeds)}
        self._clusters = [feed.cluster for feed in feeds]
        self._clock = clock
        self._wall_clock = wall_clock
        self._begun_at: float | None = None
        self._batch: Batch | None = None
        self._thread: threading.Thread | None = None
        self._found: list[RangeTimestamps] | None = None

    def start(self, batch: Batch) -> None:
        """A batch begins."""
        now = self._clock()
        if self._thread is not None and self._thread.is_alive():
            return
        if self._begun_at is not None and now - self._begun_at < INTERVAL:
            return
        self._begun_at, self._batch, self._found = now, batch, None
        self._thread = threading.Thread(target=self._probe, args=(batch,), name="headrace-delay", daemon=True)
        self._thread.start()

    def finish(self, batch: Batch) -> ProduceDelay | None:
        """The delay of a batch that was stored just now; None if it was not looked at, or the answers are late."""
        if self._batch is not batch:
            return None
        self._batch = None
        if self._found is None:
            self._begun_at = None
            return None
        return estimate(self._found, self._wall_clock())

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _probe(self, batch: Batch) -> None:
        try:
            now = self._wall_clock()
            largest = sorted((r for r in batch.ranges if len(r)), key=len, reverse=True)[:MAX_PARTITIONS]
            known = {r.at: RangeTimestamps(r, now) for r in largest}
            while wanted := {at: times for at, one in known.items() if (times := one.next_lookups())}:
                for at, asked, answer in self._look_up(wanted):
                    known[at].add(asked, answer)
            self._found = list(known.values())
        except Exception as error:
            _LOG.debug("the produce delay of batch %d is not known: %s", batch.id, error)

    def _look_up(
        self, wanted: Mapping[TopicPartition, Sequence[float]]
    ) -> Sequence[tuple[TopicPartition, float, tuple[int, float] | None]]:
        found: list[tuple[TopicPartition, float, tuple[int, float] | None]] = []
        for number, cluster in enumerate(self._clusters):
            own = {at: times for at, times in wanted.items() if source_for_topic(self._sources, at.topic) == number}
            rounds = [
                {at: time for at, time in zip(own, times, strict=True) if time is not None}
                for times in zip_longest(*own.values())
            ]
            for asked, answers in zip(rounds, cluster.lookup_times(rounds, _TIMEOUT), strict=True):
                found += [(at, time, answers.get(at)) for at, time in asked.items()]
        return found
