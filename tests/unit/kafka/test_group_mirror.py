"""A consumer group that follows the offsets: what it is told, and that nothing is left of it."""

import threading
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

import headrace as hr
from headrace import events
from headrace.kafka.group_mirror import GroupMirror
from headrace.types import Batch, Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
ELSEWHERE = TopicPartition("views", 0)


class Consumer:
    """Takes what is committed; `refusals` are raised first."""

    def __init__(self, made, refusals):
        self.made, self.refusals = made, refusals
        self.closed = False
        self.committed = []

    def commit(self, *, offsets, asynchronous):
        assert not asynchronous
        if self.refusals:
            raise self.refusals.pop()
        self.committed.append({(p.topic, p.partition): p.offset for p in offsets})
        return [SimpleNamespace(error=None) for _ in offsets]

    def close(self):
        self.closed = True


@pytest.fixture
def clients(monkeypatch):
    """The consumers that were made, and the errors that the next commits raise."""
    found = SimpleNamespace(made=[], refusals=[])

    def make(settings):
        found.made.append(Consumer(settings, found.refusals))
        return found.made[-1]

    monkeypatch.setattr(confluent_kafka, "Consumer", make)
    return found


def mirror(told):
    source = hr.Kafka("localhost:1", topics=["clicks"])
    return GroupMirror(source, "shown", told.append, reads="clicks".__eq__)


def started(positions):
    return events.RunStarted(hr.Guarantee.AT_LEAST_ONCE, (), positions)


def done(at, start, until):
    return events.BatchDone(Batch(1, (Range(at, start, until),)), 0.0, 0)


def test_the_newest_offsets_of_its_own_topics_are_committed_by_the_end(clients):
    with mirror(told := []) as shown:
        shown(started({A: 3, B: 5, ELSEWHERE: 7}))
        shown(done(A, 3, 10))
        shown(done(A, 10, 20))
    (consumer,) = clients.made
    group = {}
    for offsets in consumer.committed:
        group |= offsets
    assert group == {("clicks", 0): 20, ("clicks", 1): 5}
    assert consumer.made["group.id"] == "shown"
    assert consumer.closed
    assert told == []


def test_without_offsets_there_is_no_client(clients):
    with mirror([]) as shown:
        shown(started({ELSEWHERE: 7}))
    assert clients.made == []


def test_a_commit_that_fails_is_reported_and_made_with_the_next_offsets(clients):
    clients.refusals.append(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    failed = threading.Event()
    with GroupMirror(hr.Kafka("localhost:1", topics=["clicks"]), "shown", lambda _: failed.set(), reads=bool) as shown:
        shown(started({A: 3}))
        assert failed.wait(10)
        shown(done(B, 5, 6))
    (consumer,) = clients.made
    assert consumer.committed == [{("clicks", 0): 3, ("clicks", 1): 6}]


def test_a_client_that_cannot_be_made_is_reported_and_ends_the_thread_all_the_same(monkeypatch):
    def refuse(settings):
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    monkeypatch.setattr(confluent_kafka, "Consumer", refuse)
    before = threading.active_count()
    with mirror(told := []) as shown:
        shown(started({A: 3, B: 5, ELSEWHERE: 7}))
    assert {type(event) for event in told} == {events.MirrorFailed}
    assert threading.active_count() == before
