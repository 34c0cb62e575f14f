"""Settings of a source that cannot work are told when it is made; those that do nothing are noted."""

from __future__ import annotations

import dataclasses

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import ConfigError
from headrace.kafka import config_checks, config_keys


def source(options=None, bootstrap="one:9092,two:9092"):
    return hr.Kafka(bootstrap, topics=["clicks"], options=options or {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heartbeat.interval.ms": "3000", "session.timeout.ms": "3000"}, "not below session.timeout.ms=3000"),
        ({"session.timeout.ms": "2000"}, "heartbeat.interval.ms=3000 is not below session.timeout.ms=2000"),
        ({"heartbeat.interval.ms": 60_000}, "not below session.timeout.ms=45000"),
        ({"fetch.max.wait.ms": "30000"}, "not below request.timeout.ms=30000"),
        ({"fetch.max.wait.ms": "500", "request.timeout.ms": "500"}, "time out before its response"),
        ({"fetch.min.bytes": "1 MB"}, "invalid value for fetch.min.bytes: expected a whole number"),
        ({"max.poll.records": "1e3"}, "invalid value for max.poll.records: expected a whole number"),
        ({"isolation.level": "committed"}, "isolation.level"),
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"interceptor.classes": "com.example.Mine"}, "interceptor.classes"),
        ({"config.providers": "env"}, "config.providers"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_the_source_is_made(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        source(options)
    assert error.value.hint


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("session.time.out.ms", "session.timeout.ms"),
        ("min.fetch.bytes", "fetch.min.bytes"),
        ("max.message.size", "max.message.bytes"),
        ("auto.commit.offset", "enable.auto.commit"),
        ("max.in.flights.requests.per.session", "max.in.flight.requests.per.connection"),
        ("in.flight.requests.per.session", "max.in.flight.requests.per.connection"),
        ("fetch.message.max.bytes", "max.partition.fetch.bytes"),
        ("timeout.ms", "request.timeout.ms"),
        ("metadata.fetch.timeout.ms", "default.api.timeout.ms"),
        ("block.on.buffer.full", "max.block.ms"),
        ("heartbeat.intervall.ms", "heartbeat.interval.ms"),
        ("sasl.user.name", "sasl.username"),
        ("ssl.truststore.locaton", "ssl.truststore.location"),
        ("ssl.ca.loction", "ssl.ca.location"),
        ("kafka.security.protocol", "security.protocol"),
        ("startingOffsets", "start="),
        ("maxOffsetsPerTrigger", "hr.Limits"),
        ("failOnDataLoss", "on_data_loss"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_one(wrong, meant):
    with pytest.raises(ConfigError) as error:
        source({wrong: "1"})
    assert meant in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("key.deserializer", "format"),
        ("value.deserializer", "format"),
        ("auto.offset.reset", "start="),
        ("enable.auto.commit", "offset store"),
        ("group.id", "pipeline's name"),
    ],
)
def test_settings_that_headrace_owns_are_refused_with_what_to_use_instead(name, instead):
    with pytest.raises(ConfigError, match=instead):
        source({name: "1"})


@pytest.mark.parametrize("bootstrap", ["", " ", None])
def test_a_source_without_brokers_is_refused(bootstrap):
    with pytest.raises(ConfigError, match="bootstrap"):
        source(bootstrap=bootstrap)


def test_a_right_name_is_never_taken_for_a_wrong_one():
    for name in config_keys.EVERY - {"interceptor.classes"}:
        config_checks.check_name(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heartbeat.interval.ms": "20000"}, "more than a third of session.timeout.ms=45000"),
        ({"partition.assignment.strategy": "x"}, "partition.assignment.strategy has no effect"),
        ({"group.instance.id": "x"}, "group.instance.id has no effect"),
        ({"max.poll.interval.ms": "1000"}, "max.poll.interval.ms has no effect"),
        ({"session.timeout.ms": "10000"}, "session.timeout.ms has no effect"),
        ({"acks": "all"}, "unknown consumer setting acks"),
        ({"isolation.level": "read_uncommitted"}, "aborted"),
        ({"fetch.max.bytes": "1000"}, "max.partition.fetch.bytes=8388608 is never reached"),
        ({"fetch.min.bytes": "60000000"}, "every fetch waits"),
    ],
)
def test_settings_that_do_nothing_or_not_what_they_say_are_noted(options, message):
    assert any(message in note for note in config_checks.config_warnings(source(options)))


@pytest.mark.parametrize(
    ("bootstrap", "noted"),
    [
        ("kafka:9092", True),
        ("kafka-1:9092, kafka-2:9092", False),
        ("localhost:9092", False),
        ("127.0.0.1:9092", False),
        ("[::1]:9092", False),
        ("localhost.example.com:9092", True),
    ],
)
def test_one_broker_alone_is_noted_unless_it_is_on_this_machine(bootstrap, noted):
    found = config_checks.config_warnings(source(bootstrap=bootstrap))
    assert [note for note in found if "only bootstrap address" in note] == (found if noted else [])
    assert bool(found) is noted


def test_usual_settings_are_not_worth_a_note():
    usual = {
        "fetch.min.bytes": "1000",
        "max.poll.records": "100",
        "client.rack": "a",
        "client.id": "me",
        "security.protocol": "ssl",
        "ssl.ca.location": "ca.pem",
        "receive.buffer.bytes": "-1",
    }
    assert config_checks.config_warnings(source(usual)) == []


def test_a_value_is_never_shown():
    for options in ({"fetch.min.bytes": "geheim"}, {"isolation.level": "geheim"}, {"sasl.pasword": "geheim"}):
        with pytest.raises(ConfigError) as error:
            source(options)
        assert "geheim" not in f"{error.value} {error.value.hint}"


def test_a_name_that_no_client_has_is_refused_as_the_tools_refuse_it():
    with pytest.raises(ConfigError, match="unknown option foo: neither librdkafka nor Java's client has it"):
        source({"foo": "1"})
    with pytest.raises(ConfigError, match="unknown option foo"):
        stores.Kafka("localhost:9092", options={"foo": "1"})
    with pytest.raises(ConfigError, match=r"no option compresion\.type"):
        sinks.Kafka("localhost:9092", "t", options={"compresion.type": "lz4"})
    assert source({"foo": "1", "metric.reporters": "com.example.Mine"}).options["foo"] == "1"
    assert source({"queue.buffering.max.ms": "5"}).options == {"queue.buffering.max.ms": "5"}


def test_such_a_name_in_a_file_that_others_share_is_left_alone_and_noted(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("basic.auth.credentials.source=USER_INFO\n")
    made = dataclasses.replace(source(file), refresh=7)
    assert any(
        "unknown consumer setting basic.auth.credentials.source" in note for note in config_checks.config_warnings(made)
    )
