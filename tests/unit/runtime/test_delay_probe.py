"""When the produce delay of a batch is looked up, and what becomes of late and missing answers."""

import math
import threading

import pytest

import headrace as hr
from headrace import events
from headrace.runtime.delay_probe import INTERVAL, MAX_PARTITIONS, RETRY_INTERVAL, DelayProbe
from headrace.runtime.source_states import SourceState
from headrace.testing.fakes import FakeClock
from headrace.types import Batch, Range, TopicPartition
from support.simulation import A, B, simulate

NOW = 1_800_000_000.0


class Log:
    """A cluster in memory: every partition has a record each second, with its second as the offset."""

    def __init__(self):
        self.asked = []
        self.answering = threading.Event()
        self.answering.set()
        self.fails = False

    def lookup_times(self, asked, timeout):
        self.asked.append(asked)
        self.answering.wait(10)
        if self.fails:
            raise OSError("away")
        return [{at: self.first_after(time) for at, time in times.items()} for times in asked]

    def first_after(self, time):
        offset = max(0, math.ceil(time - NOW) + 1000)
        return offset, NOW - 1000 + offset


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def probe(log, clock):
    source = hr.Kafka("nowhere:1", topics=["clicks"])
    made = DelayProbe([SourceState(source, log)], clock, wall_clock=lambda: NOW)
    yield made
    log.answering.set()
    made.close()


def batch(number, *ranges):
    return Batch(number, ranges or (Range(A, 900, 1000),))


def measure(probe, one):
    probe.start(one)
    probe.close()
    return probe.finish(one)


def test_the_delay_is_from_the_timestamps_to_the_end_of_the_batch(probe):
    delay = measure(probe, batch(1))
    assert delay.p50 == pytest.approx(50, rel=0.1)
    assert delay.p99 == pytest.approx(99, rel=0.1)
    assert delay.max == pytest.approx(100, rel=0.1)


def test_one_batch_in_ten_seconds_is_looked_up(probe, log, clock):
    assert measure(probe, batch(1)) is not None
    asked = len(log.asked)
    clock.now = INTERVAL - 1
    assert measure(probe, batch(2)) is None
    assert len(log.asked) == asked
    clock.now = INTERVAL
    assert measure(probe, batch(3)) is not None


def test_a_batch_does_not_wait_for_answers_and_one_a_second_later_is_looked_up(probe, log, clock):
    log.answering.clear()
    first, second = batch(1), batch(2)
    probe.start(first)
    assert probe.finish(first) is None
    probe.start(second)  # the first lookup is still under way: no second one beside it
    assert probe.finish(second) is None
    log.answering.set()
    probe.close()
    clock.now = RETRY_INTERVAL
    assert measure(probe, batch(3)) is not None


def test_a_cluster_that_does_not_answer_costs_the_delay_and_a_request_a_second(probe, log, clock):
    log.fails = True
    assert measure(probe, batch(1)) is None
    assert measure(probe, batch(2)) is None
    assert len(log.asked) == 1
    log.fails = False
    clock.now = RETRY_INTERVAL
    assert measure(probe, batch(3)) is not None


def test_the_partitions_with_the_most_records_are_looked_up(probe, log):
    many = [Range(TopicPartition("clicks", number), 900, 901 + number) for number in range(MAX_PARTITIONS + 8)]
    measure(probe, batch(1, *many))
    asked = {at.partition for round_ in log.asked for times in round_ for at in times}
    assert asked == set(range(8, MAX_PARTITIONS + 8))


def test_a_run_gives_the_delay_of_a_batch_with_its_event(log):
    log.answering.set()
    sim = simulate({A: 10, B: 10})
    probe = DelayProbe([SourceState(sim.pipeline.source, log)], wall_clock=lambda: NOW)
    sim.sink.before_write = lambda batch: probe.close()  # a batch that takes longer than the lookups
    sim.run(delays=probe)
    (done,) = sim.events_of(events.BatchDone)
    assert done.produce_delay.max == pytest.approx(1000, rel=0.1)
