"""Which topics rows may name."""

import pickle
from types import SimpleNamespace

import pytest

import headrace as hr
from headrace import sinks
from headrace.connectors.kafka.produce import TopicTarget
from headrace.connectors.kafka.target_topics import AllowedTopics, NewTopics
from headrace.errors import ConfigError
from headrace.kafka.client import Client
from headrace.kafka.subscription import Pattern
from headrace.spark import tasks

LISTED = AllowedTopics.of("kind", ["orders", "refunds"], None, 100)
MATCHED = AllowedTopics.of("kind", None, r"shop\..*|.*offsets|a b|\.+", 100)


@pytest.mark.parametrize(
    ("allowed", "topic", "reason"),
    [
        (LISTED, "orders", None),
        (LISTED, "order", "expected a topic of orders, refunds, got 'order'"),
        (MATCHED, "shop.eu", None),
        (MATCHED, "shop.", None),
        (MATCHED, "x.shop.eu", "expected a topic that matches"),
        (MATCHED, "__consumer_offsets", "expected a topic that matches"),
        (MATCHED, "a b", "expected a topic that matches"),
        (MATCHED, ".", "expected a topic that matches"),
        (MATCHED, "..", "expected a topic that matches"),
        (MATCHED, "shop." + "x" * 250, "expected a topic that matches"),
    ],
)
def test_rows_may_name_listed_or_matching_topics_that_kafka_could_have(allowed, topic, reason):
    found = allowed.rejection_reason(topic)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("allowed", [LISTED, MATCHED])
def test_little_is_shown_of_what_should_be_the_name_of_a_topic(allowed):
    assert len(allowed.rejection_reason("x" * 1_000_000)) < 1_000


def test_a_topic_that_the_pipeline_reads_is_refused_on_executors_too():
    allowed = AllowedTopics(pattern="shop.*", reads=(Pattern("shop-in.*").reads,))
    there = pickle.loads(pickle.dumps(allowed))
    assert there.rejection_reason("shop-out") is None
    assert "the pipeline reads the topic shop-in-1" in there.rejection_reason("shop-in-1")


def with_letters(sink):
    return hr.Pipeline(
        name="shop",
        source=hr.Kafka("h:9092", topics=["shop-in"]),
        sink=sink,
        guarantee="at-least-once",
        dead_letters=hr.DeadLetters(topic="shop-dead"),
    )


@pytest.mark.parametrize("how", [{"topic": "shop-dead"}, {"topic_column": "to", "topics": ["shop-out", "shop-dead"]}])
@pytest.mark.parametrize("within", [lambda sink: sink, lambda sink: sinks.Fanout([sink])], ids=["alone", "fan-out"])
def test_rows_and_dead_letters_do_not_share_a_topic(how, within):
    with pytest.raises(ConfigError, match="rows and dead letters would go to the same topic, shop-dead"):
        with_letters(within(sinks.Kafka("h:9092", **how)))


def test_rows_may_not_name_the_topic_of_the_dead_letters_on_executors_either():
    """A row there, with headers of its own, would be a letter, or the mark that letters were dealt with."""
    made = with_letters(sinks.Kafka("h:9092", topic_column="to", pattern="shop-.*", headers="_kafka.headers"))
    there = pickle.loads(pickle.dumps(made.sink._allowed))
    assert there.rejection_reason("shop-out") is None
    assert "has its dead letters there" in there.rejection_reason("shop-dead")
    assert "reads the topic shop-in" in there.rejection_reason("shop-in")


def test_sinks_with_other_limits_do_not_share_the_topics_cached_in_a_worker(monkeypatch):
    keys = []
    known = SimpleNamespace(limits=lambda topic: None)
    monkeypatch.setattr(tasks, "worker_cached", lambda key, make, end: keys.append(key) or known)
    for pattern, limit, new in (("a.*", 2, None), ("b.*", 2, None), ("a.*", 3, None), ("a.*", 2, NewTopics(6))):
        allowed = AllowedTopics(pattern=pattern, limit=limit)
        TopicTarget("sink", Client("h:1", {}), {"batch.size": "1"}, new=new, allowed=allowed).limits_for("a.b")
    assert len(set(keys)) == 4
