"""The loop: load, plan, deliver, observe, stop. Knows neither Spark nor Kafka, only what they are asked for."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from headrace import events
from headrace.crashpoints import reach
from headrace.delivery import Step, Written, deliver, resume
from headrace.errors import DataLoss, HeadraceError, RetriableError
from headrace.planner import Gap, Log, beyond, caught_up, first_positions, gaps, lag, plan
from headrace.sinks.base import IdempotentSink
from headrace.stores.state import Change, Run
from headrace.types import Batch, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.pipeline import Pipeline
    from headrace.resource import Resource
    from headrace.stores.base import OffsetStore
    from headrace.types import TopicPartition


class Topics(Protocol):
    """What the loop asks of the cluster."""

    def logs(self, topics: Sequence[str]) -> dict[str, Log]: ...

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...


class Engine(Protocol):
    """What the loop asks of Spark."""

    def prepare(self) -> None:
        """Tell the sink, which is open, what rows will come."""

    def write(self, batch: Batch) -> Written:
        """Read, transform and write the rows of a batch."""

    def translated(self, error: Exception) -> Exception:
        """A driver's error in our own terms, where it has one."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the loop waits, in seconds."""

    idle: float = 0.1
    growth: float = 30.0
    first_retry: float = 0.5
    last_retry: float = 30.0

    def retry(self, attempt: int) -> float:
        return float(min(self.last_retry, self.first_retry * 2 ** min(attempt - 1, 20)))


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
        topics: Topics,
        engine: Engine,
        *,
        observer: events.Observer = events.ignore,
        fail_fast: bool = False,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._topics = topics
        self._engine = engine
        self._observe = _one_at_a_time(observer)
        self._fail_fast = fail_fast
        self._pace = pace or Pace()
        self._clock = clock
        self._stop = threading.Event()
        self._progress = Progress()
        self._newest = 0
        self._topic_ids: dict[str, str] = {}
        self._targets: Mapping[TopicPartition, int] | None = None
        self._announced = False
        self._started = False
        now = time.time()
        self._run_sign = Run(socket.gethostname(), os.getpid(), started=now, beat=now)
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
                        self._leave(store)
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
        self._engine.prepare()
        self._progress = store.load()
        sink = self._pipeline.sink
        self._newest = sink.last_batch() if isinstance(sink, IdempotentSink) else 0
        if not self._announced:
            self._announced = True
            offsets = dict(self._progress.offsets)
            self._observe(events.RunStarted(self._pipeline.guaranteed, tuple(self._pipeline.steps), offsets))
        self._settle(store)
        ends = self._look(store)
        if not self._started:
            self._started = True
            self._targets = dict(ends) if until == "caught-up" else None
        looked = self._clock()
        idle = False
        while not self._stop.is_set():
            if self._targets is not None and caught_up(self._progress, self._targets):
                self._observe(events.CaughtUp(self._progress.last_batch))
                return
            batch = plan(self._numbered(), ends, self._pipeline.limits, self._topic_ids)
            if batch is not None:
                self._deliver(batch, self._pipeline.steps, store, ends, replay=False)
            elif not idle:
                self._observe(events.CaughtUp(self._progress.last_batch))
            idle = batch is None
            if idle:
                self._stop.wait(self._pace.idle)
            if self._clock() - looked >= self._pace.growth:
                ends = self._look(store)
                looked = self._clock()
            else:
                ends = self._topics.ends(ends)

    def _numbered(self) -> Progress:
        """The progress, with the last batch's id from whichever of store and sink has seen the higher one."""
        return replace(self._progress, last_batch=max(self._progress.last_batch, self._newest))

    def _look(self, store: OffsetStore) -> dict[TopicPartition, int]:
        """Ask for topics and partitions, meet gaps, fix the position of partitions not seen before."""
        logs = self._topics.logs(self._pipeline.source.topics)
        self._topic_ids = {topic: log.topic_id for topic, log in logs.items()}
        if lost := gaps(self._progress, logs):
            self._pass_over(lost, logs, store)
        if first := first_positions(self._progress, logs, self._pipeline.source.start):
            # Written down before the first read: a later start must not choose anew and skip or repeat.
            anchor = Batch(self._progress.last_batch, first, self._topic_ids)
            reach("anchor")
            store.commit(anchor)
            self._progress = self._progress.advanced(anchor)
            self._observe(events.PartitionsFound({r.at: r.start for r in first}))
        self._sign(store)
        return {at: end for log in logs.values() for at, end in log.ends.items()}

    def _pass_over(self, lost: list[Gap], logs: Mapping[str, Log], store: OffsetStore) -> None:
        """Stop at a gap, or go on behind it as told: never without a word in the audit log."""
        policy = self._pipeline.source.on_data_loss
        if policy == "fail":
            shown = "; ".join(str(gap) for gap in lost[:5]) + (" …" if len(lost) > 5 else "")
            raise DataLoss(
                f"{self._pipeline.name}: records that were never processed are gone: {shown}",
                hint='on_data_loss="earliest" goes on behind the gap and records it',
            )
        before = {gap.lost.at: self._progress.offsets[gap.lost.at] for gap in lost}
        after = {gap.lost.at: beyond(gap, logs[gap.lost.at.topic], policy) for gap in lost}
        note = "; ".join(f"{gap} ({len(gap.lost):,} records)" for gap in lost)
        reach("gap")
        store.move(self._progress, after, self._changed("gap", before, after, note), self._topic_ids)
        self._progress = store.load()
        for gap in lost:
            self._observe(events.GapFound(gap.lost, gap.reason, after[gap.lost.at]))

    def _settle(self, store: OffsetStore) -> None:
        """Finish the batch that an earlier run died with, with exactly its journalled ranges."""
        pending = self._progress.pending
        if pending is None:
            return
        steps = resume(self._pipeline.guaranteed, self._pipeline.sink)
        if Step.WRITE in steps and (lost := self._lost_ranges(pending)):
            if self._pipeline.source.on_data_loss == "fail":
                raise DataLoss(
                    f"{self._pipeline.name}: batch {pending.id} was begun and can no longer be read: {lost[0]}",
                    hint='on_data_loss="earliest" gives the batch up and records it',
                )
            # Nobody can tell how much of it was written, and it cannot be repeated: give it up whole, and say so.
            offsets = {r.at: r.start for r in pending.ranges}, {r.at: r.until for r in pending.ranges}
            store.record(self._changed("gap", *offsets, f"batch {pending.id} given up: {lost[0]}"))
            steps = (Step.COMMIT,)
        self._deliver(pending, steps, store, {r.at: r.until for r in pending.ranges}, replay=True)

    def _lost_ranges(self, pending: Batch) -> list[Gap]:
        logs = self._topics.logs(sorted({r.at.topic for r in pending.ranges}))
        # Both ends of each range must be there: below its start by retention, below its until if the log was cut back.
        edges = ({r.at: r.start for r in pending.ranges}, {r.at: r.until for r in pending.ranges})
        return [gap for edge in edges for gap in gaps(Progress(edge, topic_ids=pending.topic_ids), logs)]

    def _sign(self, store: OffsetStore) -> None:
        """Tell whoever looks at the store that this run is alive."""
        self._run_sign = replace(self._run_sign, beat=time.time())
        store.sign(self._run_sign)

    def _leave(self, store: OffsetStore) -> None:
        with suppress(HeadraceError):  # the sign of a run that cannot say goodbye grows old instead
            if self._run_sign.same(store.read()[0].run):
                store.sign(None)

    def _changed(
        self, action: str, before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], note: str
    ) -> Change:
        return Change(time.time(), f"run {self._run_sign}", action, before, after, note)

    def _deliver(
        self,
        batch: Batch,
        steps: tuple[Step, ...],
        store: OffsetStore,
        ends: Mapping[TopicPartition, int],
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
        self._progress = self._progress.advanced(batch)
        if Step.WRITE not in steps:
            self._observe(events.BatchSkipped(batch))
            return
        self._batches += 1
        self._records += len(batch)
        for outcome in written:
            if outcome.dropped:
                self._observe(events.BadRecordsDropped(batch, outcome.dropped))
            if outcome.quarantined:
                self._observe(events.RecordsQuarantined(batch, outcome.quarantined))
        self._observe(events.BatchDone(batch, self._clock() - began, lag(self._progress, ends)))


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
