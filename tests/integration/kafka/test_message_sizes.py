"""Large messages, and what a source's settings are to the brokers' own."""

from __future__ import annotations

import uuid

import duckdb
import pytest
from confluent_kafka import Producer

import headrace as hr
from headrace import sinks
from headrace.kafka import config_checks, config_keys
from headrace.kafka.cluster import Cluster
from headrace.tools.dead_letters import DeadLetterAdmin

LARGE = 5_000_000


@pytest.fixture
def large(topic):
    """A topic for large messages, with small ones around those of 5 MB; some are not JSON."""
    where = topic(partitions=1, config={"max.message.bytes": "8000000"})
    producer = Producer({"bootstrap.servers": where.bootstrap, "message.max.bytes": 8_000_000, "log_level": 0})
    texts = [b'"s"', b'"%s"' % (b"x" * LARGE), b'"s"', b'"%s"' % (b"y" * LARGE), b'"s"']
    for text in texts:
        producer.produce(where.name, b'{"t": %s}' % text)
        producer.flush(30)
    producer.produce(where.name, b"z" * LARGE)
    assert producer.flush(30) == 0
    return where


@pytest.mark.parametrize("options", [{}, {"max.partition.fetch.bytes": "1000000", "fetch.max.bytes": "1000000"}])
def test_messages_of_5_mb_are_read_whatever_a_fetch_may_bring(large, topic, spark, tmp_path, monkeypatch, options):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    dead = topic(partitions=1, config={"max.message.bytes": "8000000"})
    made = hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(large.bootstrap, topics=[large.name], format=hr.Json("t STRING"), options=options),
        sink=sinks.DuckDB(tmp_path / "rows.duckdb", "rows"),
        guarantee="exactly-once",
        dead_letters=hr.DeadLetters(topic=dead.name),
    )
    made.run(until="caught-up", session=spark, fail_fast=True)
    with duckdb.connect(str(tmp_path / "rows.duckdb"), read_only=True) as connection:
        sizes = connection.execute("SELECT length(t) FROM rows ORDER BY 1").fetchall()
    assert sizes == [(1,), (1,), (1,), (LARGE,), (LARGE,)]
    assert [len(letter.value or b"") for letter in DeadLetterAdmin(made).letters()] == [LARGE]


def test_a_topic_that_takes_more_than_a_fetch_brings_is_noted(topic):
    usual, wide = topic(), topic(config={"max.message.bytes": "20000000"})

    def found(where, **options):
        source = hr.Kafka(where.bootstrap, topics=[where.name], options=options)
        return config_checks.topic_limit_warnings(Cluster(source.bootstrap, source.options), source)

    assert found(usual) == []
    assert found(wide, **{"max.partition.fetch.bytes": "20000000"}) == []
    (note,) = found(wide)
    assert wide.name in note
    assert "20,000,000 bytes at once, and max.partition.fetch.bytes is 8,388,608" in note
    (note,) = found(usual, **{"fetch.max.bytes": "1000000"})
    assert "fetch.max.bytes is 1,000,000" in note


def test_the_names_that_are_known_are_those_of_the_client_that_is_loaded(spark):
    config = spark.sparkContext._jvm.org.apache.kafka.clients.consumer.ConsumerConfig
    theirs = {name for name in config.configNames() if not name.startswith("internal.")}
    assert theirs <= config_keys.JAVA
    assert config_keys.JAVA - theirs <= {"metadata.recovery.rebootstrap.trigger.ms"}  # of later clients
