"""Which topics and partitions are read, also those that appear later."""

import itertools
from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.kafka.subscription import Subscription
from headrace.types import Progress, TopicPartition
from support.fake_runs import (
    A,
    B,
    C,
    World,
    records,
)


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


@pytest.mark.parametrize(("start", "read"), [("latest", []), ({"clicks": {1: 6}}, [(B, 6)])])
def test_a_partition_that_is_named_later_starts_where_start_says(start, read):
    world = World({A: 10, B: 7}, topics=None, partitions={"clicks": [0]}, start="latest")
    world.run()
    world.pipeline = replace(
        world.pipeline, source=hr.Kafka("nowhere:1", partitions={"clicks": [0, 1]}, start=start, refresh=1000.0)
    )
    world.run()
    assert world.sink.rows == read


def test_a_topic_that_a_pattern_meets_later_is_read_though_no_offsets_of_it_are_stored():
    cats = TopicPartition("cats", 0)
    world = World(
        {A: 10}, topics=None, pattern=".*", start="stored", progress=Progress({A: 0}, topic_ids={"clicks": "id-1"})
    )
    world.run()
    world.cluster.ends_[cats] = 3
    world.run()
    assert world.sink.rows[10:] == [(cats, 0), (cats, 1), (cats, 2)]
