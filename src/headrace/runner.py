"""The loop: load, plan, deliver, observe, stop. Knows neither Spark nor Kafka, only what they are asked for."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from headrace import events
from headrace.crashpoints import reach
from headrace.delivery import Step, Written, deliver, resume
from headrace.errors import HeadraceError, RetriableError
from headrace.pace import Pace
from headrace.planner import caught_up, reachable
from headrace.reading import Reading
from headrace.sinks.base import IdempotentSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.pipeline import Pipeline
    from headrace.reading import Feed
    from headrace.resource import Resource
    from headrace.stores.base import OffsetStore
    from headrace.types import Batch, TopicPartition


class Engine(Protocol):
    """What the loop asks of Spark."""

    def prepare(self) -> None:
        """Tell the sink, which is open, what rows will come."""

    def write(self, batch: Batch) -> Written:
        """Read, transform and write the rows of a batch."""

    def translated(self, error: Exception) -> Exception:
        """A driver's error in our own terms, where it has one."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did."""

    batches: int
    records: int


class Runner:
    """One run of one pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        feeds: Sequence[Feed],
        engine: Engine,
        *,
        observer: events.Observer = events.ignore,
        fail_fast: bool = False,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._engine = engine
        self._observe = _one_at_a_time(observer)
        self._fail_fast = fail_fast
        self._pace = pace or Pace()
        self._clock = clock
        self._stop = threading.Event()
        self._reading = Reading(pipeline.name, feeds, pipeline.limits, self._observe, clock)
        self._targets: Mapping[TopicPartition, int] | None = None
        self._announced = False
        self._started = False
        self._batches = 0
        self._records = 0

    def stop(self, reason: str) -> None:
        """Ask for a stop from any thread; said at once, while the batch in hand is still being finished."""
        if not self._stop.is_set():
            self._stop.set()
            self._observe(events.Stopping(reason))

    def run(self, until: Literal["caught-up"] | None = None) -> Summary:
        """Run until stopped, caught up (if asked), or met by an error that repeating cannot cure."""
        error: BaseException | None = None
        try:
            self._run(until)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._observe(events.RunStopped(self._batches, self._records, error))
        return Summary(self._batches, self._records)

    def _run(self, until: Literal["caught-up"] | None) -> None:
        attempt = 0
        while not self._stop.is_set():
            done_before = self._batches
            try:
                with _Opened(self._pipeline) as store:
                    try:
                        self._loop(store, until)
                    finally:
                        self._reading.leave(store)
                return
            except Exception as raw:
                error = self._engine.translated(raw)
                if self._fail_fast or not _repeatable(error):
                    raise error from (error.__cause__ if error is raw else raw)
                if self._stop.is_set():
                    return
                # Progress in between means that the trouble before this one is over.
                attempt = attempt + 1 if self._batches == done_before else 1
                delay = self._pace.retry(attempt)
                self._observe(events.Retrying(error, attempt, delay))
                self._stop.wait(delay)

    def _loop(self, store: OffsetStore, until: Literal["caught-up"] | None) -> None:
        reading, sink = self._reading, self._pipeline.sink
        self._engine.prepare()
        reading.open(store)
        reading.newest = sink.last_batch() if isinstance(sink, IdempotentSink) else 0
        if not self._announced:
            self._announced = True
            offsets = dict(reading.progress.offsets)
            self._observe(events.RunStarted(self._pipeline.guaranteed, tuple(self._pipeline.steps), offsets))
        self._settle(store)
        reading.look()
        if not self._started:
            self._started = True
            self._targets = reading.ends if until == "caught-up" else None
        told = False
        while not self._stop.is_set():
            if self._targets is not None and caught_up(reading.progress, reachable(self._targets, reading.ends)):
                self._observe(events.CaughtUp(reading.progress.last_batch))
                return
            batch = reading.next(wait=self._targets is None)
            if batch is not None:
                self._deliver(batch, self._pipeline.steps, store, replay=False)
                told = False
            else:
                if not told and not reading.lag:
                    told = True
                    self._observe(events.CaughtUp(reading.progress.last_batch))
                self._stop.wait(self._pace.idle)
            reading.refresh()

    def _settle(self, store: OffsetStore) -> None:
        """Finish the batch that an earlier run died with, with exactly its journalled ranges."""
        pending = self._reading.progress.pending
        if pending is None or self._reading.starts_fresh:  # which gives it up
            return
        steps = resume(self._pipeline.guaranteed, self._pipeline.sink)
        if Step.WRITE in steps and self._reading.given_up(pending):
            steps = (Step.COMMIT,)
        self._deliver(pending, steps, store, replay=True)

    def _deliver(
        self,
        batch: Batch,
        steps: tuple[Step, ...],
        store: OffsetStore,
        *,
        replay: bool,
    ) -> None:
        self._observe(events.BatchStarted(batch, replay))
        began = self._clock()
        taken: list[Step] = []
        written: list[Written] = []
        again = "replay: " if replay else ""
        try:
            for step in deliver(steps, batch, lambda: written.append(self._engine.write(batch)), store):
                taken.append(step)
                reach(f"{again}before {step}")
            reach(f"{again}delivered")
        except Exception:
            if steps[0] is Step.COMMIT and taken != [Step.COMMIT]:
                # At-most-once: the offsets have moved, so these rows are given up.
                self._observe(events.BatchSkipped(batch))
            raise
        seconds = self._clock() - began
        if Step.WRITE not in steps:
            self._reading.done(batch)
            self._observe(events.BatchSkipped(batch))
            return
        self._reading.done(batch, seconds, next((outcome.bytes_each for outcome in written), None))
        self._batches += 1
        self._records += len(batch)
        for outcome in written:
            if outcome.dropped:
                self._observe(events.BadRecordsDropped(batch, outcome.dropped))
            if outcome.quarantined:
                self._observe(events.RecordsQuarantined(batch, outcome.quarantined))
        self._observe(events.BatchDone(batch, seconds, self._reading.lag))


class _Opened:
    """Store and sink, opened for the run and closed after it; one object where the sink is the store."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._name = pipeline.name
        self._store = pipeline.store
        self._resources: dict[int, Resource] = {id(part): part for part in (self._store, pipeline.sink)}

    def __enter__(self) -> OffsetStore:
        try:
            for resource in self._resources.values():
                resource.open(self._name)
        except BaseException:
            self.__exit__()
            raise
        return self._store

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:
            for resource in self._resources.values():
                closing.callback(resource.close)


def _one_at_a_time(observer: events.Observer) -> events.Observer:
    """A stop is told from another thread; an observer may itself ask for one."""
    lock = threading.RLock()

    def observe(event: events.Event) -> None:
        with lock:
            observer(event)

    return observe


def _repeatable(error: Exception) -> bool:
    """Our own errors say whether to repeat; others came out of a transform or a driver and may pass.

    But for a driver that is not installed.
    """
    return isinstance(error, RetriableError) or not isinstance(error, HeadraceError | ImportError)
