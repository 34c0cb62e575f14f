"""Which event changes which metric."""

import math

import pytest

import headrace as hr
from headrace import events, sinks, stores
from headrace.core import metrics
from headrace.core.metrics import METRICS, Kind
from headrace.runtime.event_metrics import EndTimes, EventMetrics
from headrace.runtime.metrics_export import MetricValues
from headrace.types import Batch, Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
BATCH = Batch(7, (Range(A, 0, 1500), Range(B, 3, 4)))
PHASES = events.Phases(metadata=0.02, plan=0.001, write=0.4, commit=0.1)


class Run:
    """The metrics of a run, by name and the labels behind the first."""

    def __init__(self, **changes):
        self.now = 1000.0
        self.values = MetricValues()
        given = {
            "name": "app",
            "source": hr.Kafka("nowhere:1", topics=["clicks"]),
            "sink": sinks.Memory(),
            "guarantee": "at-least-once",
            "offsets": stores.Memory(),
            **changes,
        }
        pipeline = hr.Pipeline(**given)
        self.observe = EventMetrics("app", pipeline.sources, pipeline.lag_group, self.values, lambda: self.now)

    def __call__(self, metric, *labels):
        return self.values.of(metric)[("app", *labels)]

    def lag(self, metric, *labels, cluster="default", group="app"):
        return self.values.of(metric)[(cluster, group, *labels)]


@pytest.fixture
def run():
    return Run()


def test_counters_are_there_from_the_start(run):
    for metric in METRICS:
        if metric.kind is Kind.COUNTER and metric.labels == ("pipeline",):
            assert run(metric) == 0
    assert run(metrics.RUN_STARTED) == 1000


def test_a_batch_counts_its_records_rows_bytes_and_seconds(run):
    run.now = 1234.5
    run.observe(events.BatchDone(BATCH, 0.5, 12, 1000, 990, PHASES, 4096, 1.25))
    run.observe(events.BatchDone(BATCH, 0.5, 12, 1000, 990, PHASES, 4096, 2.5))
    assert run(metrics.BATCHES) == 2
    assert run(metrics.RECORDS) == 2000
    assert run(metrics.ROWS) == 1980
    assert run(metrics.BYTES) == 8192
    assert run(metrics.SCHEDULING_DELAY) == 2.5
    assert run(metrics.LAST_BATCH) == 1234.5
    assert run(metrics.PHASE_SECONDS, "write") == 0.8
    assert run(metrics.PHASE_SECONDS, "commit") == 0.2
    (*counts, infinite), total = run(metrics.BATCH_SECONDS)
    cumulated = dict(zip(metrics.BATCH_SECONDS.buckets, counts, strict=True))
    assert (cumulated[0.25], cumulated[0.5], cumulated[300], infinite, total) == (0, 2, 2, 2, 1.0)


def test_what_was_not_measured_of_a_batch_is_not_counted(run):
    run.observe(events.BatchDone(BATCH, 0.5, 12))
    assert run(metrics.RECORDS) == 1501
    assert run(metrics.ROWS) == run(metrics.BYTES) == 0
    for metric in (metrics.PHASE_SECONDS, metrics.SCHEDULING_DELAY, metrics.PRODUCE_DELAY):
        assert not run.values.of(metric)


def test_the_produce_delay_stays_until_it_is_measured_again(run):
    run.observe(events.BatchDone(BATCH, 0.5, 12, produce_delay=events.ProduceDelay(1, 2, 3)))
    run.observe(events.BatchDone(BATCH, 0.5, 12))
    assert [run(metrics.PRODUCE_DELAY, quantile) for quantile in ("0.5", "0.99", "1")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("event", "metric", "value"),
    [
        (events.BadRecordsDropped(BATCH, 3), metrics.BAD_RECORDS, 3),
        (events.RecordsQuarantined(BATCH, 5), metrics.DEAD_LETTERS, 5),
        (events.BatchSkipped(BATCH), metrics.SKIPPED_BATCHES, 1),
        (events.BatchTimedOut(BATCH, 30.0, 2), metrics.TIMEOUTS, 1),
        (events.Retrying(ValueError(), 2, 1.0), metrics.RETRIES, 1),
        (events.GapFound(Range(A, 10, 30), "deleted", 30), metrics.LOST_OFFSETS, 20),
        (events.MirrorFailed(OSError()), metrics.MIRROR_FAILURES, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_trouble_is_counted(run, event, metric, value):
    run.observe(event)
    assert run(metric) == value


def test_lag_has_the_names_of_kafka_lag_exporter(run):
    run.observe(events.RunStarted("exactly-once", ("write",), {A: 0, B: 3}))
    run.observe(events.BatchDone(BATCH, 0.5, 600, partition_lag={A: 500, B: 100}))
    assert run.lag(metrics.GROUP_OFFSET, "clicks", "0") == 1500
    assert run.lag(metrics.GROUP_LAG, "clicks", "0") == 500
    assert run.lag(metrics.GROUP_LAG, "clicks", "1") == 100
    assert run.lag(metrics.GROUP_MAX_LAG) == 500
    assert run.lag(metrics.GROUP_SUM_LAG) == run.lag(metrics.GROUP_TOPIC_SUM_LAG, "clicks") == 600
    assert run.values.of(metrics.LATEST_OFFSET)["default", "clicks", "0"] == 2000


def test_lag_is_zero_when_the_run_has_caught_up(run):
    run.observe(events.RunStarted("exactly-once", ("write",), {A: 0, B: 3}))
    run.observe(events.BatchDone(BATCH, 0.5, 500, partition_lag={A: 500}))
    run.observe(events.BatchDone(Batch(8, (Range(A, 1500, 2000),)), 0.5, 0))
    assert run.lag(metrics.GROUP_LAG, "clicks", "0") == run.lag(metrics.GROUP_LAG_SECONDS, "clicks", "0") == 0
    assert run.lag(metrics.GROUP_SUM_LAG) == run.lag(metrics.GROUP_MAX_LAG_SECONDS) == 0
    run.observe(events.CaughtUp(8))
    assert run.lag(metrics.GROUP_LAG, "clicks", "1") == 0


def test_lag_in_seconds_is_since_when_the_end_was_at_the_committed_offset(run):
    run.observe(events.RunStarted("exactly-once", ("write",), {A: 0}))
    for number, end in enumerate((100, 200, 300)):
        run.now = 1000.0 + 100 * number
        run.observe(events.BatchStarted(BATCH, replay=False))
        until = 50 * (number + 1)
        run.observe(
            events.BatchDone(Batch(number, (Range(A, 0, until),)), 1.0, end - until, partition_lag={A: end - until})
        )
        seconds = run.lag(metrics.GROUP_LAG_SECONDS, "clicks", "0")
        # Offset 50 was there before the first look; 100 and 150 were passed at 1000 and 1050.
        assert math.isnan(seconds) if number == 0 else seconds == {1: 100, 2: 150}[number]
    assert run.lag(metrics.GROUP_MAX_LAG_SECONDS) == 150


def test_lag_in_seconds_does_not_count_the_time_without_records(run):
    run.observe(events.RunStarted("exactly-once", ("write",), {A: 0}))
    run.observe(events.BatchDone(Batch(1, (Range(A, 0, 100),)), 1.0, 0, scheduling_delay=0.0))
    run.observe(events.CaughtUp(1))
    run.now = 5000.0
    run.observe(events.BatchStarted(BATCH, replay=False))
    done = events.BatchDone(Batch(2, (Range(A, 100, 150),)), 1.0, 50, scheduling_delay=2.0, partition_lag={A: 50})
    run.observe(done)
    assert run.lag(metrics.GROUP_MAX_LAG_SECONDS) == 1  # known for 2 seconds, and half of it is stored


def test_the_end_of_a_partition_is_remembered_for_minutes():
    ends = EndTimes()
    for second in range(10_000):
        ends.add(float(second), second * 10)
    assert ends.time_of(99_000) == pytest.approx(9900, abs=0.1)
    assert ends.time_of(98_005) == pytest.approx(9800.5, abs=0.1)
    assert math.isnan(ends.time_of(50_000))
    assert len(ends) <= 60


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, "app"),
        ({"mirror_group": "app-lag"}, "app-lag"),
        ({"offsets": stores.Kafka("nowhere:1", group="stored")}, "stored"),
    ],
)
def test_the_group_is_the_one_that_other_tools_know(changes, group):
    run = Run(**changes)
    run.observe(events.BatchDone(BATCH, 0.5, 0))
    assert run.lag(metrics.GROUP_SUM_LAG, group=group) == 0


def test_topics_of_several_clusters_have_their_own_names_there():
    sources = {name: hr.Kafka("nowhere:1", topics=["clicks"], cluster=name) for name in ("east", "west")}
    run = Run(source=sources, transform=lambda rows: rows["east"])
    east, west = TopicPartition("east.clicks", 0), TopicPartition("west.clicks", 0)
    run.observe(events.RunStarted("exactly-once", ("write",), {east: 0, west: 0}))
    run.observe(events.BatchDone(Batch(1, (Range(east, 0, 9), Range(west, 0, 9))), 0.5, 3, partition_lag={west: 3}))
    assert run.lag(metrics.GROUP_SUM_LAG, cluster="east") == 0
    assert run.lag(metrics.GROUP_SUM_LAG, cluster="west") == 3
    assert run.lag(metrics.GROUP_LAG, "clicks", "0", cluster="west") == 3
