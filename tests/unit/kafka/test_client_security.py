"""One set of options, told to both kinds of Kafka's clients in their own words."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

import headrace as hr
from headrace.errors import ConfigError
from headrace.kafka import client_options
from headrace.kafka.client import Client, connection_settings
from headrace.kafka.client_security import sasl_username, to_java_config, to_librdkafka_config

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
NASTY = "p\\a\"ss'; w=ö\n\t#${NO}"


def login(**more):
    return {"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512", **more}


def test_a_user_and_a_password_become_a_login_module():
    told = to_java_config(login(**{"sasl.username": "app", "sasl.password": "geheim"}))
    assert told == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM} required username="app" password="geheim";',
    }


def test_a_login_module_becomes_a_user_and_a_password():
    jaas = f"""{PLAIN} required
        username='app'
        password="ge\\"heim"
        serviceName=x ;"""
    told = to_librdkafka_config({"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas})
    assert told == {"sasl.mechanism": "PLAIN", "sasl.username": "app", "sasl.password": 'ge"heim'}


@pytest.mark.parametrize("password", ["geheim", NASTY, "", " ", "\\", '"', "a=b;c"])
def test_any_password_survives_the_way_there_and_back(password):
    options = login(**{"sasl.username": "app", "sasl.password": password})
    told = to_librdkafka_config(to_java_config(options))
    assert (told["sasl.username"], told["sasl.password"]) == ("app", password)


def test_each_client_gets_its_own_where_both_are_given():
    both = login(**{"sasl.username": "a", "sasl.password": "1", "sasl.jaas.config": f'{SCRAM} required username="b";'})
    assert to_java_config(both)["sasl.jaas.config"] == f'{SCRAM} required username="b";'
    assert to_librdkafka_config(both)["sasl.username"] == "a"
    assert "sasl.password" not in to_java_config(both)
    assert "sasl.jaas.config" not in to_librdkafka_config(both)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (login(), "sasl.username"),
        (login(**{"sasl.username": "app"}), "sasl.password"),
        (login(**{"sasl.jaas.config": "geheim"}), "does not parse"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER"),
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"),
        ({"ssl.truststore.location": "trust.jks", "ssl.truststore.password": "geheim"}, "PEM"),
        ({"ssl.keystore.location": "key.jks", "ssl.keystore.password": "geheim"}, "PKCS12"),
        ({"ssl.certificate.location": "c.pem", "ssl.key.location": "k.pem"}, "one file"),
        ({"ssl.ca.location": "/"}, "directory"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "OpenSSL"),
        ({"ssl.cipher.suites": "ECDHE+AESGCM"}, "Java"),
    ],
)
def test_what_one_of_the_clients_cannot_do_is_reported_when_the_source_is_made(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        hr.Kafka("kafka:9092", topics=["clicks"], options=options)
    assert error.value.hint
    assert "geheim" not in f"{error.value} {error.value.hint}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"ssl.ca.location": "ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"}),
        ({"ssl.ca.pem": "---"}, {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "---"}),
        (
            {"ssl.certificate.pem": "--", "ssl.key.pem": "---"},
            {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "--", "ssl.keystore.key": "---"},
        ),
        (
            {"ssl.certificate.location": "c.pem", "ssl.key.location": "c.pem", "ssl.key.password": "x"},
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "c.pem", "ssl.key.password": "x"},
        ),
        ({"ssl.endpoint.identification.algorithm": "none"}, {"ssl.endpoint.identification.algorithm": ""}),
    ],
)
def test_certificates_and_keys_are_known_by_both_names(one, other):
    assert to_java_config(one) == other
    assert to_librdkafka_config(other) == one


def test_a_pkcs12_keystore_and_a_name_that_tells_the_type_need_no_translation():
    options = {"ssl.keystore.location": "me.p12", "ssl.keystore.password": "x", "ssl.truststore.location": "ca.crt"}
    assert to_java_config(options) == {**options, "ssl.keystore.type": "PKCS12", "ssl.truststore.type": "PEM"}
    assert to_librdkafka_config(options) == {
        "ssl.keystore.location": "me.p12",
        "ssl.keystore.password": "x",
        "ssl.ca.location": "ca.crt",
    }


def test_options_for_one_client_are_accepted_by_the_other():
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} required username="app" password="x";',
        "sasl.login.refresh.window.factor": "0.8",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.protocol": "TLSv1.3",
        "ssl.truststore.password": "x",
        "socket.connection.setup.timeout.max.ms": "20000",
        "socket.keepalive.enable": "true",
        "fetch.min.bytes": "10",
        "isolation.level": "read_committed",
    }
    told = connection_settings("127.0.0.1:1", options, "test")
    assert told["sasl.username"] == "app"
    Consumer({**told, "group.id": "g", "log_level": 0}).close()  # it refuses names that it does not know
    assert "socket.keepalive.enable" not in to_java_config(options)
    assert to_java_config(options)["ssl.enabled.protocols"] == "TLSv1.3"


def test_a_file_that_is_not_there_is_named_before_anybody_connects(tmp_path):
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location=.*no-ca\.pem does not exist"):
        Client("127.0.0.1:1", {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "no-ca.pem")})


def test_options_without_security_are_reported_as_they_are():
    options = {"fetch.min.bytes": "10", "client.id": "me", "reconnect.backoff.ms": "5"}
    assert to_java_config(options) == options
    assert to_librdkafka_config(options) == options


def test_the_user_is_known_by_either_name():
    assert sasl_username({"sasl.username": "app"}) == "app"
    assert sasl_username({"sasl.jaas.config": f'{SCRAM} required username="app" password="x";'}) == "app"
    assert sasl_username({}) is None


def test_a_file_of_options_is_read_as_java_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", "ge=he\\im")
    file = tmp_path / "client.properties"
    file.write_text(
        "# a comment\n"
        "  ! another\n"
        "\n"
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism : PLAIN\n"
        "sasl.username  app\n"
        "sasl.password=${KAFKA_PASSWORD}\n"
        "client.id = one\\\n"
        "    -two\\\\\n"
        "client.rack=\\u00fc\\:\\=\\t.\n"
        "ssl.ca.pem=${not a name}$\n"
    )
    source = hr.Kafka("kafka:9092", topics=["clicks"], options=str(file))
    assert source.options == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "sasl.password": "ge=he\\im",
        "client.id": "one-two\\",
        "client.rack": "ü:=\t.",
        "ssl.ca.pem": "${not a name}$",
    }
    assert hr.Kafka("kafka:9092", topics=["clicks"], options=file).options == source.options
    assert "ge=he" not in f"{source!r} {source}"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a\\ b=c d ", {"a b": "c d "}),
        ("a:b=c", {"a": "b=c"}),
        ("a = = b", {"a": "= b"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x\\", {"a": "x"}),
        ("a=x\\\n# no comment\nb=1", {"a": "x# no comment", "b": "1"}),
        ("cheeses  \\\n  = yes", {"cheeses": "yes"}),
    ],
)
def test_the_syntax_of_properties(text, pairs):
    assert client_options.parse_properties(text) == pairs


def test_options_that_cannot_be_read_are_reported_and_not_shown(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=${NO_SUCH_VARIABLE}geheim\n")
    with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE") as error:
        client_options.parse_options(file)
    assert "geheim" not in str(error.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        client_options.parse_options(str(tmp_path / "other.properties"))
    with pytest.raises(ConfigError, match=r"sasl\.password is None"):
        client_options.parse_options({"sasl.password": None})
    with pytest.raises(ConfigError, match="expected a table of names and values, or the path of a file, got int"):
        client_options.parse_options(7)


def test_a_table_within_a_table_is_a_dotted_name_and_a_value_is_a_text():
    raw = {"security": {"protocol": "SSL"}, "socket.keepalive.enable": True, "fetch": {"min.bytes": 5}}
    assert client_options.parse_options(raw) == {
        "security.protocol": "SSL",
        "socket.keepalive.enable": "true",
        "fetch.min.bytes": "5",
    }


def test_stores_and_sinks_take_a_file_too_and_never_show_it(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} required username="app" password="geheim";\n'
    )
    for made in (
        hr.stores.Kafka("kafka:9092", options=file),
        hr.sinks.Kafka("kafka:9092", topic="clean", options=str(file)).offsets,
    ):
        assert made.options["sasl.password"] == "geheim"
        assert "geheim" not in repr(made)
