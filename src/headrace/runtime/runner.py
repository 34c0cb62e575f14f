"""The run loop: load, plan, deliver, observe, stop. Uses Spark and Kafka only through protocols."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from headrace import events
from headrace.core.delivery import Guarantee, Step, WriteResult, deliver, resume
from headrace.core.planner import caught_up, reachable
from headrace.core.sink import IdempotentSink, TransactionalSink
from headrace.errors import BatchChanged, BatchTimeout, HeadraceError, OffsetConflict, RetriableError, TopicRecreated
from headrace.runtime.heartbeat import RunPresence
from headrace.runtime.positions import PositionTracker
from headrace.runtime.retry import IDLE
from headrace.support.crashpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.core.offset_store import OffsetStore
    from headrace.core.resource import Resource
    from headrace.runtime.delay_probe import DelayProbe
    from headrace.runtime.heartbeat import Rival
    from headrace.runtime.pipeline import Pipeline
    from headrace.runtime.source_states import SourceState
    from headrace.types import Batch, TopicPartition


class Engine(Protocol):
    """The part of Spark that the loop uses."""

    def prepare(self) -> None:
        """Prepare the sink, which is open, for the schema of the rows."""

    def write(self, batch: Batch) -> WriteResult:
        """Read, transform and write the rows of a batch."""

    def translate_error(self, error: Exception) -> Exception:
        """The HeadraceError for an error of a driver, or the same error if there is none."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The totals of a run. `rows` is None if those of a batch could not be counted."""

    batches: int
    records: int
    rows: int | None = None


class Stop:
    """A stop that any thread may request: after the batch in flight, or at once by cancelling that batch."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.requested = threading.Event()
        self.cancelled = threading.Event()
        self.abandoned = False
        """Whether a batch failed because it was cancelled: the run leaves it as a crash would."""

    def request(self, reason: str, observe: events.Observer) -> None:
        with self._lock:
            first = not self.requested.is_set()
            self.requested.set()
        if first:
            observe(events.Stopping(reason))


class Runner:
    """One run of one pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        sources: Sequence[SourceState],
        engine: Engine,
        *,
        observer: events.Observer = events.ignore,
        fail_fast: bool = False,
        idle: float = IDLE,
        clock: Callable[[], float] = time.monotonic,
        rival: Rival = "stop",
        stop: Stop | None = None,
        delays: DelayProbe | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._engine = engine
        self._delays = delays
        self._observe = observer
        self._fail_fast = fail_fast
        self._idle = idle
        self._clock = clock
        self._stop = stop or Stop()
        self._presence = RunPresence(pipeline.name, self._observe, rival, self._stop.requested.wait)
        self._positions = PositionTracker(pipeline.name, sources, pipeline.limits, self._observe, clock, self._presence)
        self._targets: Mapping[TopicPartition, int] | None = None
        self._announced = False
        self._started = False
        self._batches = 0
        self._records = 0
        self._rows: int | None = 0
        self._timeouts = 0
        self._recreated_after: int | None = None
        """How many batches were done when a topic was last found recreated."""

    def stop(self, reason: str) -> None:
        """Request a stop, from any thread; reported at once, while the batch in flight is still being finished."""
        self._stop.request(reason, self._observe)

    def run(self, until: Literal["caught-up"] | None = None) -> Summary:
        """Run until stopped, until caught up (if requested), or until an error that a retry cannot fix."""
        error: BaseException | None = None
        try:
            self._run(until)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._release_lease()
            self._positions.close()
            self._observe(events.RunStopped(self._batches, self._records, error, self._rows))
        return Summary(self._batches, self._records, self._rows)

    def _run(self, until: Literal["caught-up"] | None) -> None:
        attempt, policy = 0, self._pipeline.retry.policy(until)
        while not self._stop.requested.is_set():
            done_before = self._batches
            try:
                with _OpenResources(self._pipeline) as store:
                    self._loop(store, until)
                    self._positions.release(store)
                return
            except Exception as raw:
                if self._stop.cancelled.is_set():
                    self._stop.abandoned = True
                    return
                error = self._engine.translate_error(raw)
                attempt = self._count_attempts(attempt, done_before)
                if not self._is_retriable(error, last=policy.is_last(attempt)):
                    raise error from (error.__cause__ if error is raw else raw)
                if self._stop.requested.is_set():
                    return
                if isinstance(error, TopicRecreated):
                    self._recreated_after = self._batches
                delay = 0.0 if isinstance(error, BatchChanged) else policy.delay(attempt)
                self._observe(events.Retrying(error, attempt, delay))
                self._stop.requested.wait(delay)

    def _release_lease(self) -> None:
        """Remove the lease of a run that ended with an error or between two attempts, when its store is closed."""
        if self._positions.holds_lease:
            # A lease that cannot be removed expires; the failure must not hide the error of the run.
            with suppress(Exception), self._pipeline.store as store:
                self._positions.release(store.open(self._pipeline.name))

    def _count_attempts(self, attempts: int, done_before: int) -> int:
        """The number of failed attempts in a row; progress in between resets it."""
        return attempts + 1 if self._batches == done_before else 1

    def _is_retriable(self, error: Exception, *, last: bool) -> bool:
        """Whether to retry after `error`. `last`: the attempts are used up."""
        # Each changed batch leaves out one more record, up to a limit, so this ends.
        if isinstance(error, BatchChanged):
            return True
        # A recreated topic needs a retry: the next refresh of metadata records the gap, or raises DataLoss. If it
        # happens again before a batch is done, the retry did not help.
        if isinstance(error, TopicRecreated) and self._recreated_after != self._batches:
            return True
        if isinstance(error, OffsetConflict) and self._presence.waits:
            return True
        return not self._fail_fast and not last and _repeatable(error)

    def _loop(self, store: OffsetStore, until: Literal["caught-up"] | None) -> None:
        positions, sink = self._positions, self._pipeline.sink
        self._engine.prepare()
        # Query the sink before the store: a batch that another run wrote before is pending or committed in the loaded
        # progress, and one that it begins after the load is refused at `begin`.
        positions.sink_last_batch = sink.last_batch() if isinstance(sink, IdempotentSink) else 0
        if not positions.open(store):
            return
        if self._pipeline.guaranteed is not Guarantee.AT_LEAST_ONCE:
            positions.refuse_sink_ahead()
        if not self._announced:
            self._announced = True
            offsets = dict(positions.progress.offsets)
            self._observe(events.RunStarted(self._pipeline.guaranteed, tuple(self._pipeline.steps), offsets))
        self._finish_pending(store)
        positions.refresh_metadata()
        if not self._started:
            self._started = True
            self._targets = positions.ends if until == "caught-up" else None
        reported = False
        while not self._stop.requested.is_set():
            if self._targets is not None and caught_up(positions.progress, reachable(self._targets, positions.ends)):
                self._observe(events.CaughtUp(positions.progress.last_batch))
                return
            batch = positions.next_batch(wait=self._targets is None)
            if batch is not None:
                self._deliver(batch, self._pipeline.steps, store, replay=False)
                reported = False
            else:
                if not reported and not positions.lag:
                    reported = True
                    self._observe(events.CaughtUp(positions.progress.last_batch))
                self._stop.requested.wait(self._idle)
            positions.poll_ends()

    def _finish_pending(self, store: OffsetStore) -> None:
        """Finish the pending batch of an earlier run, with exactly its journalled ranges."""
        pending = self._positions.progress.pending
        if pending is None or self._positions.ignores_stored_offsets:  # the refresh drops it
            return
        sink = self._pipeline.sink
        steps = resume(self._pipeline.guaranteed, sink)
        readable: Batch | None = pending
        if Step.WRITE in steps:
            readable = self._positions.readable(pending, parts=sink.accepts_partial_batches)
            steps = steps if readable else (Step.COMMIT,)
        self._deliver(pending, steps, store, replay=True, readable=readable)

    def _deliver(
        self,
        batch: Batch,
        steps: tuple[Step, ...],
        store: OffsetStore,
        *,
        replay: bool,
        readable: Batch | None = None,
    ) -> None:
        """Execute the steps. `readable` is the rest of a batch that has lost records."""
        self._observe(events.BatchStarted(batch, replay))
        began = self._clock()
        if self._delays is not None:
            self._delays.start(batch)
        begun: list[Step] = []
        results: list[WriteResult] = []
        write_seconds = 0.0

        def write() -> None:
            nonlocal write_seconds
            start = self._clock()
            results.append(self._engine.write(readable or batch))
            write_seconds = self._clock() - start

        prefix = "replay: " if replay else ""
        try:
            for step in deliver(steps, batch, write, store):
                begun.append(step)
                reach(f"{prefix}before {step}")
            reach(f"{prefix}delivered")
        except Exception as error:
            if isinstance(error, BatchTimeout):
                self._timeouts += 1
                self._observe(events.BatchTimedOut(batch, self._clock() - began, self._timeouts))
            if steps[0] is Step.COMMIT and begun != [Step.COMMIT]:
                # At-most-once: the offsets have moved, so these rows are skipped.
                self._observe(events.BatchSkipped(batch))
            raise
        seconds = self._clock() - began
        if Step.WRITE not in steps:
            self._positions.done(batch)
            self._observe(events.BatchSkipped(batch))
            return
        (result,) = results
        delay = self._delays.finish(batch) if self._delays is not None else None
        self._positions.done(batch, seconds, result.bytes_each)
        self._batches += 1
        records, rows = result.records, result.rows
        self._records += len(batch) if records is None else records
        self._rows = None if rows is None or self._rows is None else self._rows + rows
        if result.dropped:
            self._observe(events.BadRecordsDropped(batch, result.dropped))
        if result.quarantined:
            self._observe(events.RecordsQuarantined(batch, result.quarantined, result.left_out))
        # An earlier attempt planned the pending batch.
        metadata, plan = (0.0, 0.0) if replay else (self._positions.metadata_seconds, self._positions.plan_seconds)
        self._observe(
            events.BatchDone(
                batch,
                seconds,
                self._positions.lag,
                records,
                rows,
                events.Phases(metadata, plan, write_seconds, seconds - write_seconds),
                result.bytes,
                None if replay else self._positions.scheduling_delay,
                delay,
                self._positions.partition_lags,
            )
        )


class _OpenResources:
    """Opens and closes store and sink. A transactional sink opens and closes its store."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._name = pipeline.name
        self._store = pipeline.store
        transactional = isinstance(pipeline.sink, TransactionalSink)
        self._resources: list[Resource] = [pipeline.sink] if transactional else [self._store, pipeline.sink]

    def __enter__(self) -> OffsetStore:
        try:
            for resource in self._resources:
                resource.open(self._name)
        except BaseException:
            self.__exit__()
            raise
        return self._store

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:
            for resource in self._resources:
                closing.callback(resource.close)


def _repeatable(error: Exception) -> bool:
    """Whether a retry may help. The type of a Headrace error decides; errors of a transform or driver may be temporary.

    A driver that is not installed is the exception.
    """
    return isinstance(error, RetriableError) or not isinstance(error, HeadraceError | ImportError)
