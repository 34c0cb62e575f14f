"""Which topics and partitions are read, also those that appear later."""

import itertools
from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.kafka.subscription import Subscription
from headrace.testing.fakes import FakeClock
from headrace.types import Progress, TopicPartition
from support.simulation import A, B, C, records, simulate


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_partitions_that_are_added_during_a_run_are_read_from_their_beginning(start):
    sim = simulate({A: 0}, start=start, refresh=0.000_1)

    def react(event):
        if isinstance(event, events.CaughtUp):
            if B in sim.cluster.end_offsets and (B, 3) in sim.sink.rows:
                sim.stop("test")
            sim.cluster.end_offsets[B] = 4

    sim.on_event = react
    sim.run(None)
    assert sim.sink.rows == [(B, offset) for offset in range(4)]
    assert sim.events_of(events.PartitionsFound)[1].positions == {B: 0}
    assert sim.progress.offsets == {A: 0, B: 4}


def test_metadata_is_refreshed_at_the_refresh_interval():
    sim = simulate({A: 0}, refresh=30.0)
    clock = FakeClock()
    sim.clock = clock
    looks = []
    look = sim.cluster.logs

    def logs(topics):
        looks.append(clock.now)
        return look(topics)

    def tick(asked):
        clock.advance(10.0)
        if asked > 12:
            sim.stop("test")

    sim.cluster.logs, sim.cluster.before_request = logs, tick
    sim.run(None)
    assert len(looks) > 2
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(looks))


def test_a_pattern_that_starts_at_the_latest_reads_new_topics_from_their_beginning():
    eu, us, other = (TopicPartition(name, 0) for name in ("clicks.eu", "clicks.us", "taps.eu"))
    sim = simulate({eu: 5, other: 9}, topics=None, pattern=r"clicks\..*", start="latest", refresh=0.000_1)

    def react(event):
        if isinstance(event, events.CaughtUp):
            if (us, 2) in sim.sink.rows:
                sim.stop("test")
            sim.cluster.end_offsets[us] = 3

    sim.on_event = react
    sim.run(None)
    assert sim.sink.rows == [(us, offset) for offset in range(3)]
    assert sim.progress.offsets == {eu: 5, us: 3}


def test_a_topic_that_a_pattern_finds_after_a_restart_is_read_from_its_beginning():
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    sim = simulate({eu: 5}, topics=None, pattern=r"clicks\..*", start="latest")
    sim.run()
    sim.cluster.end_offsets[us] = 3
    sim.run()
    assert sim.sink.rows == [(us, offset) for offset in range(3)]


def test_a_pattern_without_topics_waits_and_reports_it():
    sim = simulate({A: 5}, topics=None, pattern="taps")
    sim.run()
    assert [event.text for event in sim.events_of(events.Noted)] == ["nothing to read yet: no topics like taps"]
    assert sim.progress.offsets == {}


def test_named_partitions_are_read_alone_and_the_others_are_reported_once():
    sim = simulate({A: 5, B: 7}, topics=None, partitions={"clicks": [1]}, refresh=0.000_1)

    def react(event):
        if isinstance(event, events.CaughtUp):
            if C in sim.cluster.end_offsets:
                sim.stop("test")
            sim.cluster.end_offsets[C] = 2
            sim.cluster.end_offsets[B] = 8

    sim.on_event = react
    sim.run(None)
    assert sim.sink.rows == [(B, offset) for offset in range(8)]
    assert [event.partitions for event in sim.events_of(events.PartitionsLeftOut)] == [(A,), (C,)]


def test_a_custom_subscription_chooses_partitions():
    class Odd(Subscription):
        names = ("clicks",)

        def wanted(self, topics):
            return [TopicPartition(topic, n) for topic, count in topics.items() for n in range(count) if n % 2]

        def __str__(self):
            return "odd partitions of clicks"

    sim = simulate({A: 5, B: 7, C: 9}, topics=Odd())
    sim.run()
    assert sim.sink.rows == records(b=7)


@pytest.mark.parametrize(("start", "read"), [("latest", []), ({"clicks": {1: 6}}, [(B, 6)])])
def test_a_partition_that_is_named_later_starts_at_start(start, read):
    sim = simulate({A: 10, B: 7}, topics=None, partitions={"clicks": [0]}, start="latest")
    sim.run()
    sim.pipeline = replace(
        sim.pipeline, source=hr.Kafka("nowhere:1", partitions={"clicks": [0, 1]}, start=start, refresh=1000.0)
    )
    sim.run()
    assert sim.sink.rows == read


def test_a_topic_that_a_pattern_finds_later_is_read_though_no_offsets_of_it_are_stored():
    cats = TopicPartition("cats", 0)
    sim = simulate(
        {A: 10}, topics=None, pattern=".*", start="stored", progress=Progress({A: 0}, topic_ids={"clicks": "id-1"})
    )
    sim.run()
    sim.cluster.end_offsets[cats] = 3
    sim.run()
    assert sim.sink.rows[10:] == [(cats, 0), (cats, 1), (cats, 2)]
