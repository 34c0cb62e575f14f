"""Why a cluster does not answer: what librdkafka reports, as an error that says what to correct."""

import socket
import ssl
from contextlib import contextmanager, nullcontext

import pytest

from headrace.errors import ConfigError, RetriableError
from headrace.kafka.connection_errors import ConnectionErrorListener

CLOSED = "127.0.0.1:1"


class Reported:
    """As librdkafka reports an error."""

    def __init__(self, name, text=""):
        self._name, self._text = name, text

    def name(self):
        return self._name

    def str(self):
        return self._text


def listener(*errors, bootstrap=CLOSED, **options):
    heard = ConnectionErrorListener(bootstrap, {name.replace("_", "."): value for name, value in options.items()})
    for error in errors:
        heard(error)
    return heard


@contextmanager
def open_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"PLAINTEXT://127.0.0.1:{server.getsockname()[1]},127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", "READ on the topics"),
        ("GROUP_AUTHORIZATION_FAILED", "READ on the group"),
        ("SASL_AUTHENTICATION_FAILED", "sasl"),
        ("_SSL", "ssl"),
        ("INVALID_GROUP_ID", "another group"),
        ("_INVALID_ARG", "settings of librdkafka"),
        ("MSG_SIZE_TOO_LARGE", "batch.size"),
        ("UNSUPPORTED_VERSION", "Kafka 2.5 or later"),
        ("INVALID_PARTITIONS", "the caller knows"),
        ("POLICY_VIOLATION", "the caller knows"),
    ],
)
def test_an_error_that_no_retry_cures_says_what_does(name, hint):
    error = listener().to_headrace_error(Reported(name, "the reason"), "reading clicks", "the caller knows")
    assert isinstance(error, ConfigError)
    assert error.message == f"Kafka at {CLOSED} refuses reading clicks: the reason"
    assert hint in error.hint


@pytest.mark.parametrize("name", ["_TIMED_OUT", "_TRANSPORT", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"])
def test_any_other_error_is_retried(name):
    error = listener().to_headrace_error(Reported(name, "the reason"))
    assert isinstance(error, RetriableError)
    assert error.message == f"Kafka at {CLOSED} does not answer: the reason"
    assert error.hint == f"headrace doctor --bootstrap {CLOSED}"


@pytest.mark.parametrize(
    ("errors", "message", "hint"),
    [
        ([], "does not answer: timed out", "headrace doctor"),
        ([Reported("_TRANSPORT", "Connection refused")], "does not answer: Connection refused", "headrace doctor"),
        ([Reported("_RESOLVE", "no such host")], "does not answer: no such host", "headrace doctor"),
        ([Reported("_AUTHENTICATION", "Disconnected")], "does not answer: timed out", "headrace doctor"),
        ([Reported("_AUTHENTICATION", "invalid credentials")], "refuses the user ann", "sasl.password"),
        ([Reported("SASL_AUTHENTICATION_FAILED", "no")], "refuses the user ann", "sasl.password"),
        ([Reported("_AUTHENTICATION", "handshake: unsupported mechanism")], "refuses the user ann", "sasl.mechanism"),
        ([Reported("_SSL", "certificate verify failed")], "cannot be verified with", "ssl.ca.location"),
        ([Reported("_SSL", "alert certificate required")], "client's certificate", "ssl.keystore.location"),
        (
            [Reported("_AUTHENTICATION", "invalid credentials"), Reported("_ALL_BROKERS_DOWN", "1/1 brokers are down")],
            "refuses the user ann",
            "sasl.password",
        ),
    ],
    ids=lambda value: "+".join(error.name() for error in value) or "nothing" if isinstance(value, list) else None,
)
def test_a_timeout_is_explained_by_the_last_error_of_the_connection(errors, message, hint):
    heard = listener(*errors, sasl_username="ann", sasl_password="secret")
    error = heard.to_headrace_error(Reported("_TIMED_OUT", "timed out"))
    assert message in error.message
    assert hint in error.hint
    assert "secret" not in error.message + error.hint


def test_an_error_that_is_not_a_timeout_speaks_for_itself():
    heard = listener(Reported("_RESOLVE", "no such host"))
    error = heard.to_headrace_error(Reported("TOPIC_AUTHORIZATION_FAILED", "no right to clicks"))
    assert "no right to clicks" in error.message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "SSL"),
        ({"sasl_mechanism": "PLAIN"}, "SASL_SSL"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "SASL_SSL"),
        ({"security_protocol": "SSL"}, None),
    ],
)
def test_a_listener_that_expects_tls_is_found_by_a_handshake(options, expected, monkeypatch):
    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", lambda *_, **__: nullcontext())
    with open_port() as bootstrap:
        heard = listener(Reported("_TRANSPORT", "Disconnected"), bootstrap=bootstrap, **options)
        error = heard.to_headrace_error(Reported("_TIMED_OUT"))
    if expected is None:
        assert isinstance(error, RetriableError)
    else:
        assert "expects TLS" in error.message
        assert f'"security.protocol": "{expected}"' in error.hint


@pytest.mark.parametrize("bootstrap", ["127.0.0.1", "127.0.0.1:0", "[::1]:port", CLOSED])
def test_an_address_without_a_server_does_not_expect_tls(bootstrap):
    heard = listener(Reported("_TRANSPORT", "Connection refused"), bootstrap=bootstrap)
    assert isinstance(heard.to_headrace_error(Reported("_TIMED_OUT")), RetriableError)
