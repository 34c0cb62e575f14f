"""The loop, with a cluster and an engine of this file: no Kafka, no Spark, rows are plain lists."""

import itertools
import os
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

import headrace as hr
from headrace import events, sinks, stores
from headrace.connectors.shared.batch_ledger import LastBatch
from headrace.core.delivery import WriteResult
from headrace.core.planner import TopicLog
from headrace.core.state import AuditEntry
from headrace.errors import BadRecord, ConfigError, DataLoss, OffsetConflict, RetriableError, TopicRecreated
from headrace.kafka.subscription import Subscription, Topics
from headrace.runtime.positions import PositionTracker, SourceState
from headrace.runtime.runner import Runner
from headrace.types import Batch, Progress, Range, TopicPartition

A, B, C = (TopicPartition("clicks", number) for number in range(3))
QUICK = hr.Retry(first=0.001, longest=0.004)
SOON = 20.0


@dataclass
class Cluster:
    """A cluster in memory. `before` is called ahead of every question, with how many were asked before it."""

    ends_: dict
    beginnings: dict = field(default_factory=dict)
    topic_id: str = "id-1"
    asked: int = 0
    before: object = None
    at_times: dict = field(default_factory=dict)

    def _ask(self):
        if self.before is not None:
            self.before(self.asked)
        self.asked += 1

    def logs(self, subscription):
        self._ask()
        counts = {}
        for at in self.ends_:
            counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
        if subscription.names is not None:
            counts = {topic: counts.get(topic, 0) for topic in subscription.names}
        wanted = set(subscription.wanted(counts)) & set(self.ends_)
        topics = subscription.names or sorted({at.topic for at in wanted})
        return {
            topic: TopicLog(
                self.topic_id,
                {at: self.beginnings.get(at, 0) for at in sorted(wanted) if at.topic == topic},
                {at: self.ends_[at] for at in sorted(wanted) if at.topic == topic},
                tuple(sorted(at for at in self.ends_ if at.topic == topic and at not in wanted)),
            )
            for topic in topics
        }

    def there(self, topics):
        return {topic: log for topic, log in self.logs(Topics(list(topics))).items() if log.ends}

    def ids(self, topics):
        return {topic: log.topic_id for topic, log in self.there(topics).items()}

    def at_time(self, partitions, time):
        self._ask()
        return {at: self.at_times[at] for at in partitions if at in self.at_times}

    def ends(self, partitions):
        self._ask()
        return {at: self.ends_[at] for at in partitions}


class Engine:
    """Rows are the (partition, offset) pairs of a batch."""

    def __init__(self, sink, dropped=0):
        self._sink = sink
        self._dropped = dropped
        self.bytes_each = self.records = None

    def prepare(self):
        """No schema is known."""

    def write(self, batch):
        self._sink.write(batch, [(r.at, offset) for r in batch.ranges for offset in range(r.start, r.until)])
        return WriteResult(dropped=self._dropped, bytes_each=self.bytes_each, records=self.records)

    def translated(self, error):
        return error


@dataclass
class Plain(sinks.Sink):
    """Keeps what it is given, after whatever `before` does."""

    rows: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    before: object = None
    opened: int = 0
    closed: int = 0

    def open(self, pipeline):
        self.opened += 1
        return self

    def close(self):
        self.closed += 1

    def write(self, batch, rows):
        if self.before is not None:
            self.before(batch)
        self.batches.append(batch)
        self.rows += rows


class Idempotent(Plain, sinks.IdempotentSink):
    pass


@dataclass
class Numbered(Idempotent):
    """Recognises batches by their number, as Delta, Iceberg and Jdbc do."""

    newest: LastBatch = field(default_factory=LastBatch)

    def last_batch(self):
        return self.newest.id

    def write(self, batch, rows):
        if not self.newest.holds(batch, "the sink"):
            super().write(batch, rows)
            self.newest = LastBatch(batch.id, batch.fingerprint)


class Killed(BaseException):
    """Not an error that a run repeats."""


def failing(times, error):
    """Raise `error` the first `times` times."""
    left = [times]

    def check(*_):
        if left[0] > 0:
            left[0] -= 1
            raise error

    return check


class World:
    """A pipeline with everything around it, run as often as a test likes."""

    def __init__(
        self,
        ends,
        *,
        guarantee="at-least-once",
        sink=None,
        progress=None,
        limits=None,
        retry=QUICK,
        **source,
    ):
        self.cluster = Cluster(dict(ends))
        self.sink = sink or Plain()
        self.engine = Engine(self.sink)
        self.shared = {}
        if progress is not None:
            self.restore(progress)
        self.seen = []
        self.react = lambda event: None
        self.pipeline = hr.Pipeline(
            name="clicks",
            source=hr.Kafka("nowhere:1", **({"topics": ["clicks"]} | {"refresh": 1000.0} | source)),
            sink=self.sink,
            guarantee=guarantee,
            offsets=stores.Memory(self.shared),
            limits=limits or hr.Limits(),
            retry=retry,
        )

    @property
    def store(self):
        return stores.Memory(self.shared).open("clicks")

    @property
    def progress(self):
        return self.store.load()

    def restore(self, progress):
        """Put the store where an earlier run left it."""
        positions = tuple(Range(at, offset, offset) for at, offset in progress.offsets.items())
        self.store.commit(Batch(progress.last_batch, positions, progress.topic_ids))
        if progress.pending is not None:
            self.store.begin(progress.pending)
        assert self.progress == progress

    def observe(self, event):
        self.seen.append(event)
        self.react(event)

    def runner(self, **how):
        return Runner(
            self.pipeline,
            [SourceState(self.pipeline.source, self.cluster)],
            self.engine,
            observer=self.observe,
            **{"idle": 0.001, **how},
        )

    def run(self, until="caught-up", **how):
        return self.runner(**how).run(until)

    def all(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


def until_idle(world, runner):
    """Stop the run the first time it has nothing left to do."""
    world.react = lambda event: runner.stop("test") if isinstance(event, events.CaughtUp) else None


def records(**ends):
    return [(at, offset) for at, end in ((A, ends.get("a", 0)), (B, ends.get("b", 0))) for offset in range(end)]


# the ordinary run


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_everything_that_is_there_is_delivered_once_and_the_offsets_say_so(guarantee):
    world = World({A: 25, B: 7}, guarantee=guarantee, sink=Idempotent(), limits=hr.Limits(max_records=10))
    summary = world.run()
    assert sorted(world.sink.rows) == records(a=25, b=7)
    assert (summary.batches, summary.records) == (4, 32)
    assert world.progress.offsets == {A: 25, B: 7}
    assert world.progress.pending is None
    assert world.progress.topic_ids == {"clicks": "id-1"}


def test_a_second_run_finds_nothing_to_do():
    world = World({A: 25})
    world.run()
    summary = world.run()
    assert (summary.batches, summary.records) == (0, 0)
    assert world.sink.rows == records(a=25)


def test_a_second_run_delivers_what_was_added_since():
    world = World({A: 25})
    world.run()
    world.cluster.ends_[A] = 30
    world.run()
    assert world.sink.rows == records(a=30)
    assert [batch.id for batch in world.sink.batches] == [1, 2]


def test_the_events_of_a_run_come_in_their_order():
    world = World({A: 5})
    world.run()
    batch = Batch(1, (Range(A, 0, 5),), {"clicks": "id-1"})
    assert [type(event) for event in world.seen] == [
        events.RunStarted,
        events.PartitionsFound,
        events.BatchStarted,
        events.BatchDone,
        events.CaughtUp,
        events.RunStopped,
    ]
    assert world.seen[0] == events.RunStarted("at-least-once", ("begin", "write", "commit"), {})
    assert world.seen[1] == events.PartitionsFound({A: 0})
    assert world.seen[2] == events.BatchStarted(batch, replay=False)
    assert (world.seen[3].batch, world.seen[3].lag) == (batch, 0)
    assert world.seen[5] == events.RunStopped(1, 5, None)


def test_the_lag_after_a_batch_is_what_is_left():
    world = World({A: 25, B: 5}, limits=hr.Limits(max_records=10))
    world.run()
    assert [event.lag for event in world.all(events.BatchDone)] == [20, 10, 0]


class Ticking:
    """A clock that goes on by what each part of a batch takes: 1 s a question to the cluster, and so on."""

    def __init__(self, world):
        self.now = 0.0
        world.cluster.before = lambda asked: self.pass_(1)
        world.sink.before = lambda batch: self.pass_(30)
        for name, seconds in (("begin", 100), ("commit", 200)):
            self._slow_down(world.pipeline.store, name, seconds)

    def pass_(self, seconds):
        self.now += seconds

    def _slow_down(self, store, name, seconds):
        call = getattr(store, name)

        def slow(batch):
            self.pass_(seconds)
            call(batch)

        setattr(store, name, slow)

    def __call__(self):
        return self.now


def test_a_batch_says_where_its_time_went():
    world = World({A: 10}, limits=hr.Limits(max_records=5))
    world.run(clock=Ticking(world))
    first, second = world.all(events.BatchDone)
    # The end offsets and the topic's id. Before the first batch: the topics; their first positions are stored.
    assert second.phases == events.Phases(metadata=2, plan=0, write=30, commit=300)
    assert first.phases == replace(second.phases, metadata=202)
    assert first.seconds == first.phases.write + first.phases.commit


@pytest.mark.parametrize(
    ("guarantee", "commit"), [("at-most-once", 200), ("at-least-once", 300), ("exactly-once", 300)]
)
def test_the_commit_phase_has_every_call_of_the_store(guarantee, commit):
    world = World({A: 10}, guarantee=guarantee, sink=Idempotent())
    world.run(clock=Ticking(world))
    assert [done.phases.commit for done in world.all(events.BatchDone)] == [commit]


def test_the_scheduling_delay_is_how_long_records_waited_for_the_batch_before():
    world = World({A: 10}, limits=hr.Limits(max_records=5))
    world.run(clock=Ticking(world))
    first, second = world.all(events.BatchDone)
    assert first.scheduling_delay == 1  # the topic's id was asked for
    assert second.scheduling_delay == first.seconds + 2


def test_the_scheduling_delay_counts_from_when_records_were_seen():
    world = World({A: 0}, limits=hr.Limits(min_records=10, max_delay=60))
    now = [0.0]
    runner = world.runner(clock=lambda: now[0])

    def tick(asked):
        now[0] += 10.0
        world.cluster.ends_[A] = 3 if asked > 5 else 0

    world.cluster.before = tick
    world.react = lambda event: runner.stop("test") if isinstance(event, events.BatchDone) else None
    runner.run(None)
    (done,) = world.all(events.BatchDone)
    assert 60 <= done.scheduling_delay <= 80


def test_a_batch_that_failed_keeps_its_records_waiting():
    world = World({A: 5}, sink=Idempotent(), guarantee="at-most-once")
    clock = Ticking(world)
    world.cluster.ends_[A] = 10
    world.sink.before = failing(1, RetriableError("away"))
    world.run(clock=clock)
    assert world.all(events.BatchDone) == []  # at-most-once gave the batch up

    world = World({A: 10}, sink=Idempotent(), guarantee="exactly-once")
    clock = Ticking(world)
    fail = failing(1, RetriableError("away"))
    world.sink.before = lambda batch: (clock.pass_(30), fail(batch))
    world.run(clock=clock)
    (done,) = world.all(events.BatchDone)
    assert done.scheduling_delay is None  # an earlier attempt planned it
    assert (done.phases.metadata, done.phases.plan, done.phases.commit) == (0, 0, 200)


def test_bytes_are_those_of_all_records_where_they_were_measured():
    world = World({A: 10}, limits=hr.Limits(max_bytes=1_000_000))
    world.engine.bytes_each, world.engine.records = 12.5, 8
    world.run()
    assert [done.bytes for done in world.all(events.BatchDone)] == [100]
    world = World({A: 10})
    world.run()
    assert [done.bytes for done in world.all(events.BatchDone)] == [None]


def test_bad_records_left_out_are_reported_with_their_batch():
    world = World({A: 5})
    world.engine = Engine(world.sink, dropped=3)
    world.run()
    (dropped,) = world.all(events.BadRecordsDropped)
    assert (dropped.batch.id, dropped.count) == (1, 3)


def test_caught_up_means_the_ends_at_the_start_though_the_log_keeps_growing():
    world = World({A: 10}, limits=hr.Limits(max_records=4))

    def grow(_):
        world.cluster.ends_[A] += 100

    world.sink.before = grow
    summary = world.run()
    assert 10 <= summary.records <= 12
    assert world.sink.rows == [(A, offset) for offset in range(summary.records)]


def test_caught_up_keeps_its_target_over_a_failure():
    world = World({A: 10}, limits=hr.Limits(max_records=4))
    fail = failing(1, RetriableError("later"))

    def grow_and_fail(batch):
        world.cluster.ends_[A] += 100
        if batch.id == 2:
            fail()

    world.sink.before = grow_and_fail
    assert 10 <= world.run().records <= 12


def test_an_empty_topic_is_caught_up_at_once():
    world = World({A: 0, B: 0})
    assert world.run().batches == 0
    assert world.progress.offsets == {A: 0, B: 0}


def test_reaching_the_end_is_said_once_each_time():
    world = World({A: 3})
    runner = world.runner()
    reached = []

    def react(event):
        if isinstance(event, events.CaughtUp):
            reached.append(event.last_batch)
            if len(reached) == 2:
                runner.stop("test")

    def grow(asked):
        if asked == 30:
            world.cluster.ends_[A] = 8

    world.react, world.cluster.before = react, grow
    runner.run()
    assert reached == [1, 2]
    assert world.cluster.asked > 30


# the journal


def pending(*ranges):
    return Batch(5, tuple(Range(*r) for r in ranges), {"clicks": "id-1"})


def begun(batch, **offsets):
    return Progress({A: offsets.get("a", 0), B: offsets.get("b", 0)}, batch, {"clicks": "id-1"}, last_batch=4)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_pending_batch_is_repeated_with_its_exact_ranges_before_anything_new(guarantee):
    left = pending((A, 10, 13), (B, 2, 3))
    world = World({A: 50, B: 9}, guarantee=guarantee, sink=Idempotent(), progress=begun(left, a=10, b=2))
    world.run()
    assert world.sink.batches[0] == left
    assert world.sink.batches[1].ranges == (Range(A, 13, 50), Range(B, 3, 9))
    assert world.sink.batches[1].id == 6
    started = world.all(events.BatchStarted)
    assert [(event.batch.id, event.replay) for event in started] == [(5, True), (6, False)]


def test_a_pending_batch_is_repeated_whole_though_the_limits_are_smaller_now():
    left = pending((A, 0, 30))
    world = World({A: 50, B: 0}, progress=begun(left), limits=hr.Limits(max_records=5))
    world.run()
    assert world.sink.batches[0] == left


def test_a_repeated_batch_counts_as_delivered():
    left = pending((A, 0, 30))
    summary = World({A: 30, B: 0}, progress=begun(left)).run()
    assert (summary.batches, summary.records) == (1, 30)


def test_a_pending_batch_under_at_most_once_is_committed_without_writing_and_the_loss_is_said():
    left = pending((A, 0, 30))
    world = World({A: 31, B: 0}, guarantee="at-most-once", progress=begun(left))
    world.run()
    assert world.sink.rows == [(A, 30)]
    assert world.all(events.BatchSkipped) == [events.BatchSkipped(left)]
    assert world.progress.pending is None
    assert world.progress.offsets[A] == 31


def test_a_run_that_fails_while_repeating_repeats_the_same_batch_again():
    left = pending((A, 0, 30))
    world = World({A: 50, B: 0}, progress=begun(left), sink=Plain(before=failing(2, ValueError("no"))))
    world.run()
    assert world.sink.batches[0] == left
    assert [event.batch.id for event in world.all(events.BatchStarted)] == [5, 5, 5, 6]


def test_a_failed_write_is_repeated_with_the_same_ranges_though_the_log_grew():
    world = World({A: 10})
    fail = failing(1, RetriableError("later"))

    def grow_and_fail(batch):
        world.cluster.ends_[A] = 20
        fail()

    world.sink.before = grow_and_fail
    world.run()
    assert world.sink.batches[0].ranges == (Range(A, 0, 10),)
    assert world.all(events.BatchStarted)[1].replay


def test_a_pending_batch_whose_records_are_gone_is_data_loss_and_says_how_to_go_on():
    world = World({A: 50, B: 0}, progress=begun(pending((A, 0, 30))))
    world.cluster.beginnings = {A: 20}
    with pytest.raises(DataLoss, match=r"batch 5 was begun.*clicks\[0\] \[0, 20\)") as lost:
        world.run()
    assert "gives the batch up and records it" in lost.value.hint
    assert world.sink.rows == []
    assert world.progress.pending is not None


def test_a_pending_batch_of_a_topic_made_anew_is_data_loss():
    world = World({A: 50, B: 0}, progress=begun(pending((A, 0, 30))))
    world.cluster.topic_id = "id-2"
    with pytest.raises(DataLoss, match="created again"):
        world.run()
    assert world.sink.rows == []


def test_a_pending_batch_that_reaches_past_the_end_of_the_log_is_data_loss():
    world = World({A: 20, B: 0}, progress=begun(pending((A, 10, 30)), a=10))
    with pytest.raises(DataLoss):
        world.run()
    assert world.sink.rows == []


# errors


@pytest.mark.parametrize("error", [RetriableError("the store is away"), ValueError("the transform raised")])
def test_an_error_that_may_pass_is_retried_until_it_has(error):
    world = World({A: 10}, sink=Plain(before=failing(40, error)))
    runner = world.runner()
    until_idle(world, runner)
    summary = runner.run()
    assert summary.records == 10
    assert world.sink.rows == records(a=10)
    assert [event.attempt for event in world.all(events.Retrying)] == list(range(1, 41))
    assert all(event.error is error for event in world.all(events.Retrying))


def test_the_waits_between_retries_grow_up_to_a_limit():
    world = World({A: 10}, sink=Plain(before=failing(6, ValueError("no"))), retry=hr.Retry(first="1ms", longest=0.008))
    world.run()
    assert [event.delay for event in world.all(events.Retrying)] == [0.001, 0.002, 0.004, 0.008, 0.008, 0.008]


def test_the_waits_stay_finite_however_long_it_takes():
    assert hr.Retry().delay(1) == 0.5
    assert hr.Retry().delay(2) == 1.0
    assert hr.Retry().delay(10_000) == 30.0


def test_after_progress_the_waits_begin_small_again():
    world = World({A: 20}, limits=hr.Limits(max_records=10))
    trouble = {1: failing(3, ValueError("first")), 2: failing(2, ValueError("second"))}
    world.sink.before = lambda batch: trouble[batch.id]()
    world.run()
    assert [event.attempt for event in world.all(events.Retrying)] == [1, 2, 3, 1, 2]


def test_a_cluster_that_does_not_answer_at_the_start_is_asked_until_it_does():
    world = World({A: 10})
    world.cluster.before = failing(5, RetriableError("Kafka does not answer"))
    assert world.run().records == 10
    assert len(world.all(events.Retrying)) == 5


def test_a_run_says_once_that_it_started_however_often_the_cluster_did_not_answer():
    world = World({A: 10})
    world.cluster.before = failing(5, RetriableError("Kafka does not answer"))
    world.run()
    assert len(world.all(events.RunStarted)) == 1


def test_a_cluster_that_goes_away_in_the_middle_costs_nothing():
    world = World({A: 30}, limits=hr.Limits(max_records=10))
    fail = failing(3, RetriableError("gone"))
    world.cluster.before = lambda asked: fail() if asked > 1 else None
    world.run()
    assert world.sink.rows == records(a=30)
    assert len(world.all(events.Retrying)) == 3


def test_store_and_sink_are_opened_anew_after_a_failure_and_closed_every_time():
    opened = []

    class Watched(stores.Memory):
        def open(self, pipeline):
            opened.append("open")
            return super().open(pipeline)

        def close(self):
            opened.append("close")

    world = World({A: 10}, sink=Plain(before=failing(2, ValueError("no"))))
    object.__setattr__(world.pipeline, "offsets", Watched(world.shared))
    world.run()
    assert opened == ["open", "close"] * 3
    assert (world.sink.opened, world.sink.closed) == (3, 3)


def test_what_was_opened_is_closed_when_the_other_cannot_be():
    closed = []

    class Watched(stores.Memory):
        def close(self):
            closed.append("store")

    class Closed(Plain):
        def open(self, pipeline):
            raise ConfigError("no such directory")

    world = World({A: 10}, sink=Closed())
    object.__setattr__(world.pipeline, "offsets", Watched(world.shared))
    with pytest.raises(ConfigError):
        world.run()
    assert closed == ["store"]


@pytest.mark.parametrize(
    "error", [ConfigError("fix it"), OffsetConflict("another"), DataLoss("gone"), BadRecord("not JSON")]
)
def test_an_error_that_repeating_cannot_cure_ends_the_run_at_once(error):
    world = World({A: 10}, sink=Plain(before=failing(100, error)))
    with pytest.raises(type(error)) as raised:
        world.run()
    assert raised.value is error
    assert world.all(events.Retrying) == []
    assert world.seen[-1] == events.RunStopped(0, 0, error, 0)


def test_a_driver_that_is_not_installed_ends_the_run_at_once():
    class Uninstalled(Plain):
        def open(self, pipeline):
            raise ImportError("duckdb is not installed; it comes with the extra: pip install 'headrace[duckdb]'")

    world = World({A: 10}, sink=Uninstalled())
    runner = world.runner()
    world.react = lambda event: runner.stop("would retry for ever") if isinstance(event, events.Retrying) else None
    with pytest.raises(ImportError, match=r"headrace\[duckdb\]"):
        runner.run("caught-up")


@pytest.mark.parametrize("error", [RetriableError("the store is away"), ValueError("the transform raised")])
def test_fail_fast_gives_up_at_the_first_error(error):
    world = World({A: 10}, sink=Plain(before=failing(1, error)))
    with pytest.raises(type(error)) as raised:
        world.run(fail_fast=True)
    assert raised.value is error
    assert world.all(events.Retrying) == []
    assert world.seen[-1].error is error


def test_fail_fast_leaves_the_batch_in_the_journal_for_the_next_run():
    world = World({A: 10}, sink=Plain(before=failing(1, ValueError("no"))))
    with pytest.raises(ValueError, match="no"):
        world.run(fail_fast=True)
    world.run(fail_fast=True)
    assert world.sink.rows == records(a=10)
    assert world.all(events.BatchStarted)[1].replay


def test_an_error_is_raised_in_our_own_terms_with_the_drivers_behind_it():
    driver, ours = RuntimeError("py4j: 200 lines"), BadRecord("clicks[0] offset 3")
    world = World({A: 10}, sink=Plain(before=failing(1, driver)))
    world.engine.translated = lambda error: ours if error is driver else error
    with pytest.raises(BadRecord) as raised:
        world.run()
    assert raised.value is ours
    assert raised.value.__cause__ is driver


def test_an_error_that_is_ours_already_keeps_the_cause_it_has():
    cause = OSError("disk")

    def fail(_):
        raise ConfigError("cannot write") from cause

    world = World({A: 10}, sink=Plain(before=fail))
    with pytest.raises(ConfigError) as raised:
        world.run()
    assert raised.value.__cause__ is cause


# at most once


def test_a_write_that_failed_under_at_most_once_is_given_up_and_said():
    world = World({A: 20}, guarantee="at-most-once", limits=hr.Limits(max_records=10))
    world.sink.before = failing(1, ValueError("no"))
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(10, 20)]
    (skipped,) = world.all(events.BatchSkipped)
    assert skipped.batch.ranges == (Range(A, 0, 10),)


def test_a_commit_that_failed_under_at_most_once_loses_nothing():
    world = World({A: 20}, guarantee="at-most-once")
    fail = failing(1, RetriableError("the store is away"))

    class Shaky(stores.Memory):
        def commit(self, batch):
            if len(batch):
                fail()
            super().commit(batch)

    object.__setattr__(world.pipeline, "offsets", Shaky(world.shared))
    world.run()
    assert world.sink.rows == records(a=20)
    assert world.all(events.BatchSkipped) == []


def test_under_at_most_once_the_offsets_move_before_the_rows():
    world = World({A: 20}, guarantee="at-most-once")
    during = []
    world.sink.before = lambda batch: during.append(world.progress.offsets[A])
    world.run()
    assert during == [20]


def test_under_at_least_once_the_offsets_move_after_the_rows_and_the_ranges_are_journalled_first():
    world = World({A: 20})
    during = []
    world.sink.before = lambda batch: during.append((world.progress.offsets[A], world.progress.pending == batch))
    world.run()
    assert during == [(0, True)]


def test_batches_are_numbered_above_the_newest_that_the_sink_remembers_even_if_the_store_forgot():
    asked = []

    class Remembering(Idempotent):
        def last_batch(self):
            asked.append(self.opened)
            return 41

    world = World({A: 30}, guarantee="exactly-once", sink=Remembering(), limits=hr.Limits(max_records=10))
    world.run()
    assert [batch.id for batch in world.sink.batches] == [42, 43, 44]
    assert asked == [1], "asked once, not before every batch: it may be a question to a server"


def test_a_batch_that_was_begun_with_another_sink_is_written_to_a_transactional_one_and_nothing_is_committed_twice():
    """Offsets were copied, pending batch and all, from the store of an idempotent sink."""
    from headrace.core.delivery import Guarantee, Step, resume

    assert resume(Guarantee.EXACTLY_ONCE, sinks.DuckDB("x.duckdb", "t")) == (Step.WRITE,)


# where to begin


def test_the_first_position_is_written_down_before_the_first_read_so_that_a_restart_does_not_skip():
    world = World({A: 10}, start="latest")
    runner = world.runner()
    until_idle(world, runner)
    runner.run()
    assert world.sink.rows == []
    world.cluster.ends_[A] = 25
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(10, 25)]


def test_a_run_that_dies_in_its_first_batch_does_not_choose_its_beginning_anew():
    world = World({A: 10}, start="latest")
    world.run()
    world.cluster.ends_[A] = 20
    world.sink.before = failing(1, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        world.run(fail_fast=True)
    world.cluster.ends_[A] = 30
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(10, 30)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_partitions_that_appear_while_running_are_noticed_and_read_from_their_beginning(start):
    world = World({A: 0}, start=start, refresh=0.000_1)
    runner = world.runner()

    def react(event):
        if isinstance(event, events.CaughtUp):
            if B in world.cluster.ends_ and (B, 3) in world.sink.rows:
                runner.stop("test")
            world.cluster.ends_[B] = 4

    world.react = react
    runner.run()
    assert world.sink.rows == [(B, offset) for offset in range(4)]
    assert world.all(events.PartitionsFound)[1].positions == {B: 0}
    assert world.progress.offsets == {A: 0, B: 4}


def test_partitions_are_looked_for_at_their_own_pace():
    world = World({A: 0}, refresh=30.0)
    now = [0.0]
    runner = world.runner(clock=lambda: now[0])
    looks = []
    look = world.cluster.logs

    def logs(topics):
        looks.append(now[0])
        return look(topics)

    def tick(asked):
        now[0] += 10.0
        if asked > 12:
            runner.stop("test")

    world.cluster.logs, world.cluster.before = logs, tick
    runner.run()
    assert len(looks) > 2
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(looks))


def test_records_that_aged_out_are_data_loss_with_the_exact_range_and_nothing_is_written():
    world = World({A: 50}, progress=Progress({A: 10}, topic_ids={"clicks": "id-1"}, last_batch=3))
    world.cluster.beginnings = {A: 25}
    with pytest.raises(DataLoss, match=r"clicks\[0\] \[10, 25\)") as lost:
        world.run()
    assert lost.value.exit_code == 4
    assert lost.value.hint
    assert world.sink.rows == []
    assert world.progress.offsets == {A: 10}


def test_a_topic_made_anew_is_data_loss_though_its_log_is_longer():
    world = World({A: 10})
    world.run()
    world.cluster.topic_id, world.cluster.ends_[A] = "id-2", 500
    with pytest.raises(DataLoss, match="created again"):
        world.run()
    assert world.sink.rows == records(a=10)


def test_a_topic_made_anew_while_running_is_noticed():
    world = World({A: 10}, refresh=0.000_1)
    runner = world.runner()

    def react(event):
        if isinstance(event, events.CaughtUp):
            world.cluster.topic_id = "id-2"

    world.react = react
    with pytest.raises(DataLoss, match="created again"):
        runner.run()


# stopping


def test_a_stop_lets_the_batch_in_hand_finish_and_starts_no_other():
    world = World({A: 100}, limits=hr.Limits(max_records=10))
    runner = world.runner()
    world.sink.before = lambda batch: runner.stop("SIGTERM") if batch.id == 2 else None
    summary = runner.run()
    assert (summary.batches, summary.records) == (2, 20)
    assert world.progress.offsets == {A: 20}
    assert world.progress.pending is None
    # Said at once, not when the batch is done: whoever pressed Ctrl-C is waiting for a word.
    assert [type(event) for event in world.seen[-4:]] == [
        events.BatchStarted,
        events.Stopping,
        events.BatchDone,
        events.RunStopped,
    ]


def test_a_stop_before_the_start_does_nothing():
    world = World({A: 100})
    runner = world.runner()
    runner.stop("SIGTERM")
    assert runner.run().batches == 0
    assert world.cluster.asked == 0
    assert world.progress == Progress()


def test_a_stop_ends_the_wait_for_the_next_retry():
    retry = hr.Retry(first="10m", longest="10m")
    world = World({A: 10}, sink=Plain(before=failing(10**9, ValueError("no"))), retry=retry)
    runner = world.runner()
    world.react = lambda event: threading.Timer(0.01, runner.stop, ["test"]).start() if _is_retry(event) else None
    began = time.monotonic()
    runner.run()
    assert time.monotonic() - began < SOON
    assert len(world.all(events.Retrying)) == 1


def _is_retry(event):
    return isinstance(event, events.Retrying)


def test_a_stop_ends_the_wait_for_new_records():
    world = World({A: 10})
    runner = world.runner(idle=600.0)
    world.react = lambda event: (
        threading.Timer(0.01, runner.stop, ["test"]).start() if isinstance(event, events.CaughtUp) else None
    )
    began = time.monotonic()
    assert runner.run().records == 10
    assert time.monotonic() - began < SOON


def test_a_batch_that_fails_after_the_stop_is_left_for_the_next_run():
    world = World({A: 10})
    runner = world.runner()

    def stop_and_fail(_):
        runner.stop("SIGTERM")
        raise ValueError("cut off")

    world.sink.before = stop_and_fail
    assert runner.run().batches == 0
    assert world.progress.pending is not None
    world.sink.before = None
    world.run()
    assert world.sink.rows == records(a=10)


def test_the_first_reason_to_stop_is_the_one_that_is_told():
    world = World({A: 10})
    runner = world.runner()
    runner.stop("SIGTERM")
    runner.stop("SIGINT")
    runner.run()
    assert world.all(events.Stopping) == [events.Stopping("SIGTERM")]


# two runs of one pipeline


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_of_two_runs_at_once_the_loser_stops_with_offset_conflict(guarantee):
    world = World({A: 100}, guarantee=guarantee, sink=Idempotent(), limits=hr.Limits(max_records=10))
    rival = World({A: 100}, guarantee=guarantee, sink=Idempotent(), limits=hr.Limits(max_records=7))
    object.__setattr__(rival.pipeline, "offsets", stores.Memory(world.shared))
    world.react = lambda event: _once(rival) if isinstance(event, events.BatchDone) else None

    def _once(other):
        world.react = lambda event: None
        other.run(rival="take-over")

    with pytest.raises(OffsetConflict) as lost:
        world.run()
    assert lost.value.exit_code == 3
    assert "another run" in lost.value.hint
    assert sorted(world.sink.rows + rival.sink.rows) == records(a=100)
    assert world.all(events.Retrying) == []


def test_a_rival_that_moves_on_during_the_write_wins():
    world = World({A: 10})
    rival = World({A: 10})
    object.__setattr__(rival.pipeline, "offsets", stores.Memory(world.shared))
    world.sink.before = lambda batch: rival.run(rival="take-over")
    with pytest.raises(OffsetConflict):
        world.run()
    assert world.progress.offsets == {A: 10}
    assert rival.sink.rows == records(a=10)


@pytest.mark.parametrize("answered", ["load", "last_batch"])
def test_a_numbered_sink_stores_a_batch_once_though_a_run_was_suspended_while_it_started(answered, monkeypatch):
    world = World({A: 10}, guarantee="exactly-once", sink=Numbered())
    world.run()
    world.cluster.ends_[A] = 15
    owner = stores.Memory if answered == "load" else Numbered
    ask = getattr(owner, answered)
    suspended = []

    def other_run(event):
        if isinstance(event, events.BatchStarted):
            monkeypatch.setattr(stores.Memory, "commit", failing(1, Killed()))

    def asked(self):
        answer = ask(self)
        if not suspended:
            suspended.append(answer)
            world.react = other_run
            with pytest.raises(Killed):
                world.run()
            world.react = lambda event: None
            monkeypatch.undo()
        return answer

    monkeypatch.setattr(owner, answered, asked)
    world.run()
    assert world.sink.rows == records(a=15)
    assert [batch.id for batch in world.sink.batches] == [1, 2]
    assert world.progress.offsets == {A: 15}
    assert world.progress.pending is None


# going on behind a gap, when told to


def test_told_to_go_on_a_run_passes_the_gap_and_records_it():
    progress = Progress({A: 10}, topic_ids={"clicks": "id-1"}, last_batch=3)
    world = World({A: 50}, progress=progress, on_data_loss="earliest")
    world.cluster.beginnings = {A: 25}
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(25, 50)]
    (gap,) = world.all(events.GapFound)
    assert (gap.lost, gap.resumed_at) == (Range(A, 10, 25), 25)
    (change,) = world.store.history()
    assert (change.before, change.after) == ({A: 10}, {A: 25})
    assert "[10, 25)" in change.note


def test_a_gap_is_not_passed_over_offsets_that_somebody_moved_meanwhile():
    """Else the move would be undone without a word, and what it asked for never be read again."""
    world = World({A: 50}, progress=Progress({A: 10}, topic_ids={"clicks": "id-1"}), on_data_loss="earliest")
    world.cluster.beginnings = {A: 25}

    def move(asked):
        if asked == 0:
            world.store.set_offsets(world.progress, {A: 30}, AuditEntry(1.0, "somebody", "seek"))

    world.cluster.before = move
    with pytest.raises(OffsetConflict, match="somebody else moved the offsets"):
        world.run()
    assert world.progress.offsets == {A: 30}
    assert world.sink.rows == []
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(30, 50)]


def test_told_to_go_on_a_run_reads_a_topic_made_anew_from_its_beginning():
    progress = Progress({A: 10}, topic_ids={"clicks": "old"}, last_batch=3)
    world = World({A: 5}, progress=progress, on_data_loss="earliest")
    world.run()
    assert world.sink.rows == records(a=5)
    assert world.progress.topic_ids == {"clicks": "id-1"}
    assert len(world.store.history()) == 1


def test_told_to_go_on_a_run_gives_up_a_batch_that_can_no_longer_be_read():
    left = pending((A, 0, 30), (B, 0, 5))
    world = World({A: 50, B: 9}, sink=Idempotent(), progress=begun(left), on_data_loss="earliest")
    world.cluster.beginnings = {A: 20}
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(30, 50)] + [(B, offset) for offset in range(5, 9)]
    assert world.all(events.BatchSkipped) == [events.BatchSkipped(left)]
    (recorded,) = world.store.history()
    assert (recorded.before, recorded.after) == ({A: 0, B: 0}, {A: 30, B: 5})
    assert "batch 5 given up" in recorded.note


class Keyed(Idempotent):
    accepts_partial_batches = True


@pytest.mark.parametrize(("sink", "guarantee"), [(Keyed, "exactly-once"), (Plain, "at-least-once")])
def test_a_sink_whose_rows_stand_alone_loses_of_a_pending_batch_only_what_is_gone(sink, guarantee):
    left = pending((A, 0, 30), (B, 0, 5))
    world = World({A: 50, B: 9}, guarantee=guarantee, sink=sink(), progress=begun(left), on_data_loss="earliest")
    world.cluster.beginnings = {A: 20}
    world.run()
    assert sorted(world.sink.rows) == [(A, offset) for offset in range(20, 50)] + [(B, n) for n in range(9)]
    assert world.sink.batches[0] == replace(left, ranges=(Range(A, 20, 30), Range(B, 0, 5)))
    assert world.all(events.BatchSkipped) == []
    assert world.all(events.GapFound) == [events.GapFound(Range(A, 0, 20), "the broker has deleted these records", 20)]
    (recorded,) = world.store.history()
    assert (recorded.before, recorded.after) == ({A: 0}, {A: 20})
    assert world.progress.offsets == {A: 50, B: 9}
    assert world.progress.last_batch == 6


class Checking(Engine):
    """Refuses rows whose topics are not the ones that the batch was planned with, once the sink has them."""

    def __init__(self, sink, cluster):
        super().__init__(sink)
        self._cluster = cluster

    def write(self, batch):
        written = super().write(batch)
        if self._cluster.ids(batch.topic_ids) != batch.topic_ids:
            raise TopicRecreated("another id")
        return written


class ClusterOfTwo(Cluster):
    def logs(self, subscription):
        return {topic: replace(log, topic_id=f"{topic}-2") for topic, log in super().logs(subscription).items()}


def test_the_part_that_is_left_of_a_pending_batch_is_stored_though_another_of_its_topics_was_recreated():
    kept, recreated = TopicPartition("kept", 0), TopicPartition("recreated", 0)
    ids = {"kept": "kept-2", "recreated": "recreated-1"}
    left = Batch(5, (Range(kept, 0, 30), Range(recreated, 0, 5)), ids)
    world = World(
        {kept: 50, recreated: 9},
        guarantee="exactly-once",
        sink=Keyed(),
        progress=Progress({kept: 0, recreated: 0}, left, ids, last_batch=4),
        on_data_loss="earliest",
        topics=["kept", "recreated"],
    )
    world.cluster = ClusterOfTwo(world.cluster.ends_)
    world.engine = Checking(world.sink, world.cluster)
    runner = world.runner()
    world.react = lambda event: runner.stop("it does not end") if isinstance(event, events.Retrying) else None
    runner.run("caught-up")
    assert sorted(world.sink.rows) == [(kept, n) for n in range(50)] + [(recreated, n) for n in range(9)]
    assert world.progress.offsets == {kept: 50, recreated: 9}
    assert world.progress.pending is None
    assert [change.note.partition(":")[0] for change in world.store.history()] == [
        "batch 5 repeated without what is lost",
        "recreated[0] [5, 5)",
    ]


def test_a_topic_made_anew_while_a_batch_was_read_takes_the_ranges_along_that_are_not_committed():
    """As with a sink that holds the offsets and whose tasks commit by themselves: nothing was begun in a store."""
    world = World({A: 10, B: 5}, on_data_loss="earliest")
    reading = PositionTracker("clicks", [SourceState(world.pipeline.source, world.cluster)], hr.Limits(), world.observe)
    reading.open(world.store)
    reading.look()
    assert reading.next(wait=False).ranges == (Range(A, 0, 10), Range(B, 0, 5))
    world.store.commit(Batch(1, (Range(B, 0, 5),), {"clicks": "id-1"}))
    world.cluster.topic_id, world.cluster.ends_ = "id-2", {A: 3, B: 1}
    reading.open(world.store)
    reading.look()
    assert [event.lost for event in world.all(events.GapFound)] == [Range(A, 0, 10), Range(B, 5, 5)]
    assert "clicks[0] [0, 10): the topic was deleted and created again (10 offsets)" in world.store.history()[0].note
    assert reading.next(wait=False).ranges == (Range(A, 0, 3), Range(B, 0, 1))
    reading.close()


def test_a_recreated_topic_that_is_met_again_before_any_batch_is_done_uses_up_attempts():
    world = World({A: 20}, limits=hr.Limits(max_records=10), retry=replace(QUICK, attempts=3))
    trouble = {1: failing(1, TopicRecreated("once")), 2: failing(20, TopicRecreated("without end"))}
    world.sink.before = lambda batch: trouble[batch.id]()
    with pytest.raises(TopicRecreated, match="without end"):
        world.run()
    assert [event.attempt for event in world.all(events.Retrying)] == [1, 1, 2]


# offsets that are moved back


class Published(Idempotent):
    """Knows batches by their names, as Parquet does."""

    def write(self, batch, rows):
        if batch.fingerprint not in {known.fingerprint for known in self.batches}:
            super().write(batch, rows)


@pytest.mark.parametrize("sink", [Published, Numbered])
@pytest.mark.parametrize("cut", [10, 7])
def test_what_is_read_again_after_a_reset_is_stored_again_however_it_is_cut(sink, cut):
    world = World({A: 10}, guarantee="exactly-once", sink=sink(), limits=hr.Limits(max_records=cut))
    for epoch in range(3):
        assert world.progress.epoch == epoch
        world.run()
        assert world.sink.rows == records(a=10) * (epoch + 1)
        world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))


@pytest.mark.parametrize("sink", [Published, Numbered])
@pytest.mark.parametrize("cut", [10, 7])
def test_a_reset_that_drops_a_batch_which_is_stored_already_stores_it_again_however_it_is_cut(sink, cut):
    left = pending((A, 0, 10))
    world = World(
        {A: 10}, guarantee="exactly-once", sink=sink(), progress=begun(left), limits=hr.Limits(max_records=cut)
    )
    world.sink.write(left, records(a=10))  # by a run that was killed before it could commit
    world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))
    world.run()
    assert world.sink.rows == records(a=10) * 2


def test_a_run_that_planned_a_batch_before_the_offsets_were_moved_back_is_refused():
    world = World({A: 10}, guarantee="exactly-once", sink=Published(), limits=hr.Limits(max_records=10))
    world.run()
    rows = list(world.sink.rows)
    world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))

    def move_again(event):
        if isinstance(event, events.BatchStarted):
            state = world.store.read()[0]
            world.store._change(lambda _: replace(state, progress=replace(state.progress, epoch=2)))

    world.react = move_again
    with pytest.raises(OffsetConflict, match="moved back"):
        world.run()
    assert world.sink.rows == rows


# a store that is older than its sink


def restored(guarantee="exactly-once"):
    """The store is put back to where it was after the second of four batches."""
    world = World({A: 10}, guarantee=guarantee, sink=Numbered(), limits=hr.Limits(max_records=5))
    world.run()
    backup = dict(world.shared)
    world.cluster.ends_[A] = 20
    world.run()
    world.shared.update(backup)
    return world


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
def test_a_store_restored_from_an_older_backup_stops_the_run_before_rows_are_doubled(guarantee):
    world = restored(guarantee)
    with pytest.raises(OffsetConflict, match=r"the sink holds batch 4 .* newest batch of the store is 2") as stopped:
        world.run()
    assert "offsets seek" in stopped.value.hint
    assert world.sink.rows == records(a=20)


def test_a_run_goes_on_once_the_offsets_were_set_and_batches_are_numbered_above_those_of_the_sink():
    world = restored()
    world.store.set_offsets(world.progress, {A: 20}, AuditEntry(1.0, "somebody", "seek"))
    world.cluster.ends_[A] = 22
    world.run()
    assert world.sink.rows == records(a=22)
    assert [batch.id for batch in world.sink.batches] == [1, 2, 3, 4, 5]


def test_at_least_once_goes_on_with_a_store_that_is_older_than_the_sink():
    world = restored("at-least-once")
    world.run()
    assert world.sink.rows == records(a=20) + records(a=20)[10:]


def test_a_move_before_the_backup_does_not_count():
    world = World({A: 10}, guarantee="exactly-once", sink=Numbered(), limits=hr.Limits(max_records=5))
    world.run()
    world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))
    world.run()
    backup = dict(world.shared)
    world.cluster.ends_[A] = 20
    world.run()
    world.shared.update(backup)
    with pytest.raises(OffsetConflict, match="the sink holds batch 6"):
        world.run()


def test_a_gap_that_a_run_recorded_before_the_backup_does_not_count():
    world = World({A: 10}, guarantee="exactly-once", sink=Numbered(), on_data_loss="earliest")
    world.run()
    world.store.set_offsets(world.progress, {A: 10}, AuditEntry(1.0, "run pid 1 on host", "gap"))
    backup = dict(world.shared)
    world.cluster.ends_[A] = 20
    world.run()
    world.shared.update(backup)
    with pytest.raises(OffsetConflict, match="the sink holds batch 2"):
        world.run()


def test_a_new_store_numbers_above_the_batches_of_the_sink():
    world = World({A: 5}, guarantee="exactly-once", sink=Numbered(newest=LastBatch(7, "another")))
    world.run()
    assert [batch.id for batch in world.sink.batches] == [8]


# a store that lost a part of its journal


def shrunken():
    return replace(begun(pending((A, 0, 30))), pending=replace(pending((A, 0, 30)), missing=1))


@pytest.mark.parametrize("sink", [Idempotent, Plain])
def test_a_pending_batch_of_which_the_store_lost_ranges_is_not_replayed(sink):
    world = World({A: 50, B: 0}, sink=sink(), progress=shrunken())
    with pytest.raises(DataLoss, match="batch 5 was begun and can no longer be read: 1 of its 2 ranges"):
        world.run()
    assert world.sink.rows == []
    assert world.progress == shrunken()


def test_told_to_go_on_a_run_records_a_batch_of_which_the_store_lost_ranges_and_abandons_it():
    world = World({A: 50, B: 0}, sink=Idempotent(), progress=shrunken(), on_data_loss="earliest")
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(30, 50)]
    (recorded,) = world.store.history()
    assert (recorded.before, recorded.after) == ({A: 0}, {A: 30})
    assert "1 of its 2 ranges" in recorded.note


def test_a_store_that_loses_ranges_of_the_batch_in_flight_is_data_loss():
    world = World({A: 50, B: 0}, sink=Idempotent())

    def lose(batch):
        before = world.store.read()[0]
        shrunk = replace(before.progress, pending=replace(batch, missing=1))
        world.store._change(lambda state: replace(state, progress=shrunk))

    world.sink.before = lose
    with pytest.raises(DataLoss, match="a topic of batch 1 was deleted"):
        world.run()


def test_a_run_signs_the_store_while_it_lives_and_leaves_no_sign_behind():
    world = World({A: 10})
    during = []
    world.sink.before = lambda batch: during.append(world.store.read()[0].run)
    world.run()
    assert during[0].pid == os.getpid()
    assert world.store.read()[0].run is None


def test_a_run_that_ends_with_an_error_that_the_engine_explains_leaves_no_sign_behind():
    world = World({A: 10}, sink=Plain(before=failing(1, ValueError("in the transform"))))
    world.engine.translated = lambda error: BadRecord("clicks[0] offset 3")
    with pytest.raises(BadRecord):
        world.run()
    assert world.store.read()[0].run is None


def test_a_run_that_uses_up_its_attempts_leaves_no_sign_behind():
    sink = Plain(before=failing(9, RetriableError("the sink is down")))
    world = World({A: 10}, sink=sink, retry=replace(QUICK, attempts=2))
    with pytest.raises(RetriableError):
        world.run()
    assert world.store.read()[0].run is None


@pytest.mark.parametrize("at", [events.BatchStarted, events.Retrying])
def test_a_run_that_is_stopped_between_two_attempts_leaves_no_sign_behind(at):
    sink = Plain(before=failing(9, RetriableError("the sink is down")))
    world = World({A: 10}, sink=sink, retry=hr.Retry(first="10m", longest="10m"))
    runner = world.runner()
    signs = []

    def stop(event):
        if isinstance(event, at):
            signs.append(world.store.read()[0].run)
            runner.stop("test")

    world.react = stop
    runner.run()
    assert [run.pid for run in signs] == [os.getpid()]
    assert world.store.read()[0].run is None


def test_a_store_that_is_down_when_a_run_ends_does_not_hide_its_error(monkeypatch):
    world = World({A: 10}, sink=Plain(before=failing(1, BadRecord("clicks[0] offset 3"))))
    opened = []

    def once(self, pipeline):
        opened.append(pipeline)
        if len(opened) > 1:
            raise ConnectionError("the store is down")
        return self

    monkeypatch.setattr(type(world.pipeline.store), "open", once)
    world.pipeline.store._pipeline = "clicks"
    with pytest.raises(BadRecord):
        world.run()
    assert len(opened) == 2


# what is read, and from where


def test_a_pattern_reads_what_matches_and_finds_new_topics_from_their_beginning_though_it_starts_at_the_latest():
    eu, us, other = (TopicPartition(name, 0) for name in ("clicks.eu", "clicks.us", "taps.eu"))
    world = World({eu: 5, other: 9}, topics=None, pattern=r"clicks\..*", start="latest", refresh=0.000_1)
    runner = world.runner()

    def react(event):
        if isinstance(event, events.CaughtUp):
            if (us, 2) in world.sink.rows:
                runner.stop("test")
            world.cluster.ends_[us] = 3

    world.react = react
    runner.run()
    assert world.sink.rows == [(us, offset) for offset in range(3)]
    assert world.progress.offsets == {eu: 5, us: 3}


def test_a_topic_that_a_pattern_meets_after_a_restart_is_read_from_its_beginning():
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    world = World({eu: 5}, topics=None, pattern=r"clicks\..*", start="latest")
    world.run()
    world.cluster.ends_[us] = 3
    world.run()
    assert world.sink.rows == [(us, offset) for offset in range(3)]


def test_a_pattern_that_matches_nothing_yet_waits_and_says_so():
    world = World({A: 5}, topics=None, pattern="taps")
    world.run()
    assert [event.text for event in world.all(events.Noted)] == ["nothing to read yet: no topics like taps"]
    assert world.progress.offsets == {}


def test_named_partitions_are_read_alone_and_the_others_are_told_once():
    world = World({A: 5, B: 7}, topics=None, partitions={"clicks": [1]}, refresh=0.000_1)
    runner = world.runner()

    def react(event):
        if isinstance(event, events.CaughtUp):
            if C in world.cluster.ends_:
                runner.stop("test")
            world.cluster.ends_[C] = 2
            world.cluster.ends_[B] = 8

    world.react = react
    runner.run()
    assert world.sink.rows == [(B, offset) for offset in range(8)]
    assert [event.partitions for event in world.all(events.PartitionsLeftOut)] == [(A,), (C,)]


def test_a_rule_of_ones_own_chooses_partitions():
    class Odd(Subscription):
        names = ("clicks",)

        def wanted(self, topics):
            return [TopicPartition(topic, n) for topic, count in topics.items() for n in range(count) if n % 2]

        def __str__(self):
            return "odd partitions of clicks"

    world = World({A: 5, B: 7, C: 9}, topics=Odd())
    world.run()
    assert world.sink.rows == records(b=7)


def test_a_time_starts_each_partition_at_its_first_record_since():
    world = World({A: 10, B: 10}, start=datetime(2026, 11, 1, tzinfo=UTC))
    world.cluster.at_times = {A: 6}
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(6, 10)]
    world.cluster.at_times = {A: 0, B: 0}
    world.cluster.ends_.update({A: 11, B: 11})
    world.run()
    assert world.sink.rows[4:] == [(A, 10), (B, 10)]


def test_given_offsets_start_there_and_the_others_at_their_beginning():
    world = World({A: 10, B: 3}, start={"clicks": {0: 8}})
    world.run()
    assert sorted(world.sink.rows) == [(A, 8), (A, 9), (B, 0), (B, 1), (B, 2)]


@pytest.mark.parametrize("offset", [4, 11])
def test_an_offset_that_the_log_does_not_have_is_refused_before_anything_is_read(offset):
    world = World({A: 10}, start={"clicks": {"0": offset}})
    world.cluster.beginnings = {A: 5}
    with pytest.raises(ConfigError, match=rf"clicks\[0\] from {offset}; its log has offsets 5 to 10"):
        world.run()
    assert world.progress.offsets == {}


def test_stored_starts_where_it_was_or_not_at_all():
    world = World({A: 10}, start="stored")
    with pytest.raises(ConfigError, match="no offsets of clicks are stored"):
        world.run()
    assert world.progress == Progress()
    world.restore(Progress({A: 4}, topic_ids={"clicks": "id-1"}))
    world.cluster.ends_[B] = 2
    world.run()
    assert sorted(world.sink.rows) == [(A, n) for n in range(4, 10)] + [(B, 0), (B, 1)]


def test_every_run_starts_fresh_without_resume_and_what_it_leaves_out_is_on_record():
    world = World({A: 10}, start="latest", resume=False)
    world.run()
    world.cluster.ends_[A] = 25
    world.run()
    assert world.sink.rows == []
    assert [(event.lost, event.resumed_at) for event in world.all(events.GapFound)] == [(Range(A, 10, 25), 25)]
    (change,) = world.store.history()
    assert (change.action, change.before, change.after) == ("fresh start", {A: 10}, {A: 25})


def test_a_run_without_resume_goes_on_where_it_was_after_an_error_of_its_own():
    world = World({A: 10}, start="earliest", resume=False, limits=hr.Limits(max_records=5))
    world.sink.before = failing(1, RetriableError("no"))
    world.run()
    assert world.sink.rows == records(a=10)
    world.run()
    assert world.sink.rows == records(a=10) + records(a=10)


def test_what_lags_more_than_allowed_is_skipped_and_recorded():
    world = World({A: 100, B: 3}, max_lag=10)
    world.run()
    assert sorted(world.sink.rows) == [(A, n) for n in range(90, 100)] + [(B, n) for n in range(3)]
    (gap,) = world.all(events.GapFound)
    assert (gap.lost, gap.resumed_at) == (Range(A, 0, 90), 90)
    assert "max_lag=10 offsets" in gap.reason
    (change,) = world.store.history()
    assert "90 offsets" in change.note


def test_a_lag_may_be_given_as_a_time():
    world = World({A: 100, B: 50}, max_lag="10m")
    world.cluster.at_times = {A: 97}
    world.run()
    assert world.sink.rows == [(A, n) for n in range(97, 100)]


# how much is read


def test_a_batch_waits_for_enough_records_but_not_for_ever():
    world = World({A: 0}, limits=hr.Limits(min_records=10, max_delay=60))
    now, sizes = [0.0], {5: 3, 8: 12, 20: 13}
    runner = world.runner(clock=lambda: now[0])

    def tick(asked):
        now[0] += 10.0
        world.cluster.ends_[A] = max(end for when, end in [(0, 0), *sizes.items()] if when <= asked)
        if asked > 40:
            runner.stop("test")

    world.cluster.before = tick
    runner.run(None)
    assert [len(batch) for batch in world.sink.batches] == [12, 1]
    assert len(world.all(events.CaughtUp)) == 3


def test_to_catch_up_means_to_wait_for_no_more():
    world = World({A: 4}, limits=hr.Limits(min_records=10))
    world.run()
    assert world.sink.rows == records(a=4)


def test_batches_shrink_while_the_sink_is_slow_and_grow_when_it_is_not():
    world = World({A: 600_000}, limits=hr.Limits(batch_seconds=2, first_records=1_000))
    now, per_second = [0.0], [10_000]

    def write(batch):
        if len(world.sink.batches) == 10:
            per_second[0] = 1_000
        if len(world.sink.batches) == 20:
            per_second[0] = 20_000
        now[0] += len(batch) / per_second[0]

    world.sink.before = write
    world.run(clock=lambda: now[0])
    sizes = [len(batch) for batch in world.sink.batches]
    assert sizes[0] == 1_000
    assert sizes[5] == pytest.approx(20_000, rel=0.1)
    assert sizes[15] == pytest.approx(2_000, rel=0.2)
    assert sizes[25] == pytest.approx(40_000, rel=0.1)
    assert world.sink.rows == records(a=600_000)


def test_bytes_limit_the_records_of_a_batch():
    world = World({A: 100_000}, limits=hr.Limits(max_bytes=1_000_000, first_records=500))
    world.engine.bytes_each = 1_000
    world.run()
    assert [len(batch) for batch in world.sink.batches][:3] == [500, 1_000, 1_000]
    assert world.sink.rows == records(a=100_000)


def test_a_fresh_start_gives_up_the_batch_that_was_begun_and_records_it():
    pending = Batch(3, (Range(A, 5, 9),), {"clicks": "id-1"})
    world = World(
        {A: 20},
        start="latest",
        resume=False,
        progress=Progress({A: 5}, pending, {"clicks": "id-1"}, last_batch=2),
        sink=Idempotent(),
        guarantee="exactly-once",
    )
    world.run()
    assert world.sink.rows == []
    assert [event.batch for event in world.all(events.BatchSkipped)] == [pending]
    assert world.progress.pending is None
    assert "batch 3 given up" in world.store.history()[0].note


def test_a_fresh_start_is_for_partitions_that_were_added_meanwhile_too():
    world = World({A: 10}, start="latest", resume=False)
    world.run()
    world.cluster.ends_[B] = 7
    world.run()
    assert world.sink.rows == []


@pytest.mark.parametrize(("start", "read"), [("latest", []), ({"clicks": {1: 6}}, [(B, 6)])])
def test_a_partition_that_is_named_later_starts_where_start_says(start, read):
    world = World({A: 10, B: 7}, topics=None, partitions={"clicks": [0]}, start="latest")
    world.run()
    world.pipeline = replace(
        world.pipeline, source=hr.Kafka("nowhere:1", partitions={"clicks": [0, 1]}, start=start, refresh=1000.0)
    )
    world.run()
    assert world.sink.rows == read


@pytest.mark.parametrize("start", [{"misspelt": {0: 5}}, {"clicks": {7: 5}}])
def test_an_offset_of_something_that_is_not_read_is_refused(start):
    with pytest.raises(ConfigError, match="is not read: clicks"):
        World({A: 10}, start=start).run()


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_topic_of_a_pattern_that_is_deleted_unread_is_data_loss_or_on_record(policy):
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    world = World(
        {eu: 5, us: 40},
        topics=None,
        pattern=r"clicks\..*",
        on_data_loss=policy,
        limits=hr.Limits(max_records=10),
        refresh=0.000_1,
    )
    world.sink.before = lambda batch: world.cluster.ends_.pop(us, None)
    if policy == "fail":
        with pytest.raises(DataLoss, match="the topic was deleted"):
            world.run()
        return
    world.run()
    (gap,) = world.all(events.GapFound)
    assert (gap.lost, gap.reason) == (Range(us, 5, 40), "the topic was deleted")
    assert [change.action for change in world.store.history()] == ["gap"]


def test_to_catch_up_ends_though_a_topic_is_deleted_or_made_anew_with_less():
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    world = World(
        {eu: 20, us: 20},
        topics=None,
        pattern=r"clicks\..*",
        on_data_loss="earliest",
        limits=hr.Limits(max_records=4),
        refresh=0.000_1,
    )

    def write(batch):
        world.cluster.ends_.pop(us, None)
        world.cluster.ends_[eu] = 12

    world.sink.before = write
    world.run()
    assert world.progress.offsets[eu] == 12


def test_a_batch_of_a_deleted_topic_is_given_up_when_told_so():
    pending = Batch(3, (Range(TopicPartition("clicks.us", 0), 5, 9),), {"clicks.us": "id-1"})
    progress = Progress({TopicPartition("clicks.us", 0): 5}, pending, {"clicks.us": "id-1"}, last_batch=2)
    eu = TopicPartition("clicks.eu", 0)
    for policy in ("fail", "earliest"):
        world = World({eu: 3}, topics=None, pattern=r"clicks\..*", on_data_loss=policy, progress=progress)
        if policy == "fail":
            with pytest.raises(DataLoss, match="the topic was deleted"):
                world.run()
        else:
            world.run()
            assert world.sink.rows == [(eu, n) for n in range(3)]


def test_a_log_that_has_uncommitted_records_was_not_cut_back():
    world = World({A: 10}, progress=Progress({A: 12}, topic_ids={"clicks": "id-1"}))
    look = world.cluster.logs
    world.cluster.logs = lambda subscription: {
        topic: replace(log, written={A: 15}) for topic, log in look(subscription).items()
    }
    world.run()
    assert world.progress.offsets == {A: 12}


def test_a_slow_sink_gets_batches_of_a_few_records():
    world = World({A: 60}, limits=hr.Limits(batch_seconds=2, first_records=10))
    now = [0.0]

    def write(batch):
        now[0] += len(batch) / 5

    world.sink.before = write
    world.run(clock=lambda: now[0])
    assert [len(batch) for batch in world.sink.batches][1:] == [10] * 5


# topics made anew


def test_a_topic_made_anew_with_fewer_partitions_loses_nothing_when_it_grows():
    world = World({A: 500, B: 500}, on_data_loss="earliest")
    world.run()
    world.cluster.ends_, world.cluster.topic_id = {A: 5}, "id-2"
    world.run()
    world.cluster.ends_ = {A: 5, B: 600}
    world.run()
    assert [row for row in world.sink.rows[1000:] if row[0] == B] == [(B, offset) for offset in range(600)]


def test_a_topic_made_anew_between_two_looks_is_not_read_on_at_the_old_offsets():
    world = World({A: 10}, on_data_loss="earliest")
    runner = world.runner()

    def react(event):
        if isinstance(event, events.BatchDone) and len(world.sink.rows) == 10:
            world.cluster.ends_, world.cluster.topic_id = {A: 20}, "id-2"
        if isinstance(event, events.CaughtUp):
            runner.stop("test")

    world.react = react
    runner.run()
    assert world.sink.rows == [*records(a=10), *records(a=20)]
    assert len(world.all(events.GapFound)) == 1


def test_a_pending_batch_of_a_partition_that_is_no_more_is_data_loss():
    world = World({A: 50}, progress=begun(pending((B, 0, 30))))
    world.cluster.topic_id = "id-2"
    with pytest.raises(DataLoss, match="created again"):
        world.run()


def test_what_is_held_back_is_not_skipped():
    now = [0.0]
    world = World({A: 0}, limits=hr.Limits(min_records=100, max_delay=1000), max_lag=50)
    runner = world.runner(clock=lambda: now[0])

    def grow(asked):
        now[0] += 1.0
        world.cluster.ends_[A] += 10
        if asked > 60:
            runner.stop("test")

    world.cluster.before = grow
    runner.run()
    assert len(world.sink.rows) >= 200
    assert all(50 <= len(batch) <= 100 for batch in world.sink.batches)


def test_a_topic_that_a_pattern_meets_later_is_read_though_no_offsets_of_it_are_stored():
    cats = TopicPartition("cats", 0)
    world = World(
        {A: 10}, topics=None, pattern=".*", start="stored", progress=Progress({A: 0}, topic_ids={"clicks": "id-1"})
    )
    world.run()
    world.cluster.ends_[cats] = 3
    world.run()
    assert world.sink.rows[10:] == [(cats, 0), (cats, 1), (cats, 2)]
