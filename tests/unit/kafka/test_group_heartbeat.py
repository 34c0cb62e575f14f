"""Heartbeats of stores that keep them apart from the sign: whatever the clocks of two machines say."""

import json
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest

from headrace import stores
from headrace.connectors.zookeeper import znodes
from headrace.core.state import RunLease, State
from headrace.kafka.client import Client
from headrace.kafka.group_heartbeat import GroupHeartbeat
from headrace.types import TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
OLD = RunLease("fast-clock", 1, started=1060.0, beat=1061.0, pid_space="x")
NEW = RunLease("slow-clock", 2, started=1030.0, beat=1030.0, pid_space="y")


class Committed:
    """The consumer of a group, as far as heartbeats need it."""

    def __init__(self, entries):
        self._entries = entries

    def committed(self, positions, timeout):
        return [Mock(metadata=self._entries.get((position.topic, position.partition))) for position in positions]

    def commit(self, offsets, asynchronous):
        for position in offsets:
            self._entries[position.topic, position.partition] = position.metadata


class Group:
    def __init__(self):
        self._entries = {}
        self.places = [A]

    def handle(self):
        beats = GroupHeartbeat(Client("localhost:1", {}), "clicks", lambda: self.places)
        beats._consumer = Committed(self._entries)
        return beats

    def set_lease(self, run):
        """Heartbeats do not see the sign."""


class Node:
    """The two nodes of a store in ZooKeeper."""

    def __init__(self):
        self._nodes = {}

    def handle(self):
        store = stores.ZooKeeper("nowhere:1")
        client = Mock()
        client.get_async = lambda path: Mock(get=lambda timeout: (self._nodes.get(path, b""), Mock()))
        client.set_async = lambda path, text: Mock(get=lambda timeout: self._nodes.__setitem__(path, text))
        store._client = client
        return store

    def set_lease(self, run):
        self._nodes["/headrace"] = znodes.encode(State(run=run), {})


@pytest.fixture(params=["group", "node"])
def place(request):
    return Group() if request.param == "group" else Node()


def test_a_newcomer_with_a_slower_clock_sends_heartbeats_and_the_old_run_none(place):
    old, new = place.handle(), place.handle()
    place.set_lease(OLD)
    assert old.heartbeat(OLD)
    place.set_lease(NEW)
    assert new.heartbeat(NEW)
    assert new.heartbeat(replace(NEW, beat=1033.0))
    assert not old.heartbeat(replace(OLD, beat=1064.0))
    assert new.heartbeat(replace(NEW, beat=1036.0))


def test_a_newcomer_goes_on_though_the_old_run_wrote_a_last_heartbeat_over_its_own():
    group = Group()
    old, new = group.handle(), group.handle()
    assert old.heartbeat(OLD) and new.heartbeat(NEW)
    group._entries["clicks", 0] = json.dumps(asdict(replace(OLD, beat=1064.0)))
    assert new.heartbeat(replace(NEW, beat=1033.0))
    assert not old.heartbeat(OLD)


def test_the_heartbeat_of_a_run_counts_beside_a_newer_one_of_another_run():
    group = Group()
    group.places = [B]
    assert group.handle().heartbeat(OLD)
    group.places = [A, B]
    beats = group.handle()
    assert beats.heartbeat(NEW)
    assert beats.newest(NEW) == NEW and beats.newest(OLD) == OLD


def test_a_group_that_cannot_be_read_costs_the_newcomer_no_heartbeat():
    from confluent_kafka import KafkaException

    group = Group()
    assert group.handle().heartbeat(OLD)
    beats = group.handle()
    readable, unreadable = beats._consumer, Mock(commit=Mock())
    unreadable.committed.side_effect = KafkaException()
    beats._consumer = unreadable
    assert beats.heartbeat(NEW) and unreadable.commit.called
    beats._consumer = readable
    assert beats.heartbeat(NEW)
