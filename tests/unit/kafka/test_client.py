"""The settings of Kafka clients, and the errors of their requests."""

import pickle
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.errors import ConfigError, RetriableError
from headrace.kafka.client import Client, chunked
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.types import TopicPartition

A, B, C = (TopicPartition("clicks", number) for number in range(3))


@pytest.fixture
def built(monkeypatch):
    """The settings of the clients that are built."""
    settings = []
    for kind in ("Consumer", "Producer"):
        monkeypatch.setattr(confluent_kafka, kind, settings.append)
    return settings


def failing(*codes):
    """A request that fails with each of these errors, then succeeds."""
    errors = [KafkaException(KafkaError(code)) for code in codes]

    def request(*_, **__):
        if errors:
            raise errors.pop(0)
        return "answer"

    return request


def test_all_clients_share_the_settings_of_the_connection(built):
    client = Client("h:1", {"security.protocol": "ssl", "fetch.min.bytes": "10"}, "headrace-clicks")
    client.consumer("report", {"isolation.level": "read_committed"})
    client.producer({"linger.ms": 20, "bootstrap.servers": "elsewhere:1"})
    for settings in built:
        assert (settings["bootstrap.servers"], settings["client.id"]) == ("h:1", "headrace-clicks")
        assert settings["security.protocol"] == "ssl"
        assert "fetch.min.bytes" not in settings
    consumer, producer = built
    assert (consumer["group.id"], consumer["enable.auto.commit"]) == ("report", False)
    assert producer["linger.ms"] == 20


@pytest.mark.parametrize(
    ("options", "tuning"),
    [
        ({"bootstrap.servers": "h:1", "security.protocol": "ssl", "client.id": "me"}, {}),
        ({"fetch.min.bytes": "10", "transactional.id": "t"}, {"fetch.min.bytes": "10"}),
        (
            {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor,x.Other"},
            {"partition.assignment.strategy": "cooperative-sticky"},
        ),
        (
            {
                "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor, "
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
            },
            {"partition.assignment.strategy": "range"},
        ),
        ({"partition.assignment.strategy": "x.Other"}, {}),
        ({"partition.assignment.strategy": "roundrobin"}, {"partition.assignment.strategy": "roundrobin"}),
    ],
)
def test_tuning_is_what_does_not_concern_the_connection(options, tuning):
    assert Client("h:1", options).tuning == tuning


def test_options_of_java_alone_are_dropped_and_unknown_ones_refused():
    built = []

    def consumer(settings):
        if "max.poll.records" in settings:
            raise KafkaException(
                KafkaError(KafkaError._INVALID_ARG, 'No such configuration property: "max.poll.records"')
            )
        if "no.such" in settings:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, 'No such configuration property: "no.such"'))
        built.append(settings)

    Client("h:1", {"max.poll.records": "5", "a": "1", "b": "1"}).build_tuned(consumer, {"a": "2"}, {"b": "0", "c": "0"})
    (settings,) = built
    assert {name: settings[name] for name in ("a", "b", "c")} == {"a": "2", "b": "1", "c": "0"}
    assert "max.poll.records" not in settings
    with pytest.raises(ConfigError, match=r"refuses these options: .*no\.such"):
        Client("h:1", {"no.such": "1"}).build_tuned(consumer, {}, {})


def test_a_client_is_pickled_without_what_its_connection_has_reported():
    client = Client("h:1", {"client.id": "me"})
    client._errors(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    copy = pickle.loads(pickle.dumps(client))
    assert copy.settings == client.settings
    timeout = KafkaError(KafkaError._TIMED_OUT)
    assert "connection refused" in client.to_headrace_error(timeout).message
    assert "connection refused" not in copy.to_headrace_error(timeout).message


def test_an_error_that_is_ignored_gives_the_default():
    client = Client("h:1", {})
    unknown = failing(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert client.call(unknown, "t", {"UNKNOWN_TOPIC_OR_PART"}, default=0) == 0
    with pytest.raises(RetriableError, match="does not answer for the topic t"):
        client.call(failing(KafkaError.UNKNOWN_TOPIC_OR_PART), "the topic t")
    with pytest.raises(ConfigError, match="refuses the topic t") as refused:
        client.call(failing(KafkaError.INVALID_REPLICATION_FACTOR), "the topic t", hint="choose another number")
    assert refused.value.hint == "choose another number"


def test_committed_offsets_are_read_in_chunks_and_only_where_there_are_some(monkeypatch):
    monkeypatch.setattr("headrace.kafka.client._PARTITIONS_PER_REQUEST", 2)
    offsets, requests = {0: 5, 1: -1001, 2: 7}, []

    def committed(positions, timeout):
        requests.append(len(positions))
        return [
            SimpleNamespace(
                topic=p.topic, partition=p.partition, offset=offsets[p.partition], metadata=None, error=None
            )
            for p in positions
        ]

    found = Client("h:1", {}).committed(SimpleNamespace(committed=committed), [A, B, C], 1.0, "the group g")
    assert found == {A: CommittedOffset(5, ""), C: CommittedOffset(7, "")}
    assert requests == [2, 1]


@pytest.mark.parametrize(
    ("code", "ignored", "expected"),
    [
        (KafkaError.NOT_COORDINATOR, (), {}),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, (), {}),
        (KafkaError._TIMED_OUT, ("_TIMED_OUT",), None),
    ],
)
def test_committed_offsets_are_asked_again_while_the_coordinator_moves(code, ignored, expected):
    request = failing(code)
    consumer = SimpleNamespace(committed=lambda positions, timeout: request() and [])
    assert Client("h:1", {}).committed(consumer, [A], 1.0, "the group g", ignored) == expected


def test_the_error_of_one_partition_is_raised():
    held = SimpleNamespace(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    consumer = SimpleNamespace(committed=lambda positions, timeout: [held])
    with pytest.raises(ConfigError, match="refuses the group g"):
        Client("h:1", {}).committed(consumer, [A], 1.0, "the group g")


@pytest.mark.parametrize(
    ("items", "size", "expected"), [([], 2, []), ([1], 2, [[1]]), ([1, 2, 3], 2, [[1, 2], [3]]), ([1, 2], 2, [[1, 2]])]
)
def test_items_are_chunked(items, size, expected):
    assert list(chunked(items, size)) == expected
