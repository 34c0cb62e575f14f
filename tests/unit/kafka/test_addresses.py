"""Addresses of brokers: what can be one, and what is refused with what to type."""

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import ConfigError
from headrace.kafka.addresses import brokers


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("localhost:9092", "localhost:9092"),
        ("a:1, b:65535 ,", "a:1,b:65535"),
        (["a:9092", "b:9092"], "a:9092,b:9092"),
        (("10.0.0.1:9092",), "10.0.0.1:9092"),
        ("[::1]:9092", "[::1]:9092"),
        ("SASL_SSL://kafka-1.example.com:9093", "SASL_SSL://kafka-1.example.com:9093"),
        ("broker_1:9092", "broker_1:9092"),
    ],
)
def test_one_address_or_several_are_taken(given, text):
    assert brokers(given) == text
    assert hr.Kafka(given, topics=["clicks"]).bootstrap == text


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ("localhost", "'localhost' has no port", "localhost:9092"),
        ("localhost:99999", "expected a port from 1 to 65535, got 99999", "localhost:9092"),
        ("localhost:0", "expected a port from 1 to 65535, got 0", "localhost:9092"),
        ("local host:9092", "'local host:9092' is not an address", "localhost:9092"),
        ("localhost:9o92", "is not an address", "localhost:9092"),
        ("a:9092,b", "'b' has no port", "b:9092"),
        ("http://a:9092/path", "is not an address", "localhost:9092"),
        ("http://a:9092", "is not an address", "localhost:9092"),
        ("::1:9092", "is not an address", "localhost:9092"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [lambda at: hr.Kafka(at, topics=["t"]), lambda at: sinks.Kafka(at, "t"), stores.Kafka],
    ids=["source", "sink", "store"],
)
def test_what_cannot_be_an_address_is_refused(make, given, message, hint):
    with pytest.raises(ConfigError, match="bootstrap") as refused:
        make(given)
    assert message in refused.value.message
    assert refused.value.hint == hint


@pytest.mark.parametrize("given", ["", " , ", [], None, 9092, [9092]])
def test_no_address_is_refused(given):
    with pytest.raises(ConfigError, match="expected"):
        brokers(given)


def test_a_password_in_the_place_of_an_address_is_not_shown():
    with pytest.raises(ConfigError) as refused:
        brokers("sasl://user:secret@host:9092")
    assert "secret" not in refused.value.message
