"""The produce delay of records on a real broker, against their own timestamps."""

import time

import pytest

import headrace as hr
from headrace.kafka.cluster import Cluster
from headrace.runtime.delay_probe import DelayProbe
from headrace.runtime.source_states import SourceState
from headrace.types import Batch, Range, TopicPartition


@pytest.fixture
def measure_once():
    """`measure_once(topic, ranges)` measures the delay of one batch of these ranges; None if it is not known."""
    clusters = []

    def run(topic, ranges):
        source = hr.Kafka(topic.bootstrap, topics=[topic.name])
        clusters.append(Cluster.of(source))
        probe = DelayProbe([SourceState(source, clusters[-1])])
        batch = Batch(1, tuple(Range(TopicPartition(topic.name, number), *r) for number, r in enumerate(ranges)))
        probe.start(batch)
        probe.close()
        return probe.finish(batch)

    yield run
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def measure(measure_once):
    """The same batch after batch, as a busy broker may respond to one too late."""

    def run(topic, ranges):
        deadline = time.monotonic() + 60
        while (delay := measure_once(topic, ranges)) is None:
            assert time.monotonic() < deadline, "no batch was measured"
        return delay

    return run


def produce_with_ages(topic, ages, partition):
    now = time.time()
    for age in ages:
        topic.produce([{"age": age}], partition=partition, timestamp=int((now - age) * 1000))


def test_the_delay_is_that_of_the_timestamps_of_the_producer(topic, measure):
    clicks = topic(partitions=2)
    produce_with_ages(clicks, range(300, 200, -1), 0)
    produce_with_ages(clicks, range(7300, 7200, -1), 1)
    delay = measure(clicks, [(0, 100), (0, 100)])
    assert delay.p50 == pytest.approx(300, rel=0.15)
    assert delay.p99 == pytest.approx(7298, rel=0.1)
    assert delay.max == pytest.approx(7300, rel=0.1)
    assert measure(clicks, [(40, 60)]).p50 == pytest.approx(250, rel=0.1)


def test_the_delay_is_that_of_the_brokers_timestamps_where_the_topic_says_so(topic, measure):
    clicks = topic(partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    produce_with_ages(clicks, [3600] * 10, 0)
    assert 0 <= measure(clicks, [(0, 10)]).max < 60


def test_a_partition_that_went_away_has_no_delay(topic, measure_once):
    clicks = topic(partitions=1)
    clicks.produce([{}] * 3)
    assert measure_once(clicks, [(0, 3), (0, 3)]) is None
