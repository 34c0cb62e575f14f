"""A broker behind TLS and passwords: one set of options for driver, executors and tools; what is wrong is told soon."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid

import duckdb
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import headrace as hr
from headrace import sinks
from headrace.dev.certificates import Certificate
from headrace.errors import ConfigError
from headrace.kafka.admin import Admin
from headrace.kafka.client import Client
from headrace.testing.committed_records import read_committed
from headrace.testing.fixtures import Topic
from headrace.tools import doctor
from headrace.tools.dead_letters import DeadLetterAdmin

SOON = 9.0
"""Seconds; a client that waits until its time is up takes longer."""


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("KAFKA_BOOTSTRAP", raising=False)


@pytest.fixture
def topic(secure_kafka):
    """Made and filled by the open listener."""

    def make(values=()):
        made = Topic(secure_kafka.bootstrap, f"test-{uuid.uuid4().hex[:12]}", 2, {})
        made.produce(values)
        return made

    return make


@pytest.fixture
def file(secure_kafka, tmp_path, monkeypatch):
    """The options of `app` in a file, with the names of the Java client, with the password in the environment."""
    monkeypatch.setenv("TEST_PASSWORD", secure_kafka.users["app"].replace("\\", "\\\\").replace('"', '\\"'))
    made = tmp_path / "client.properties"
    made.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="app" password="${TEST_PASSWORD}";\n'
        f"ssl.truststore.location={secure_kafka.certificate.authority}\n"
        "ssl.truststore.type=PEM\n"
    )
    return made


def pipeline(bootstrap, topic, sink, options, **more):
    source = hr.Kafka(bootstrap, topics=[topic.name], format=hr.Json("id BIGINT"), options=options)
    return hr.Pipeline(name=f"p-{uuid.uuid4().hex[:8]}", source=source, sink=sink, guarantee="exactly-once", **more)


def numbered(count):
    return [{"id": n} for n in range(count)]


def ids(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM rows ORDER BY id").fetchall()]


def test_a_pipeline_runs_over_tls_and_scram_with_the_words_of_librdkafka(secure_kafka, topic, spark, tmp_path):
    where = topic(numbered(100))
    sink = sinks.DuckDB(tmp_path / "rows.duckdb", "rows")
    made = pipeline(secure_kafka.secure, where, sink, secure_kafka.client("app"))
    assert made.run(until="caught-up", session=spark, fail_fast=True).records == 100
    assert ids(tmp_path / "rows.duckdb") == list(range(100))


def test_executors_of_their_own_read_and_write_with_the_same_options_and_log_no_password(
    secure_kafka, spark_cluster, topic, file, tmp_path
):
    where, target = topic(numbered(40)), topic()
    app = tmp_path / "app.py"
    app.write_text(
        "import headrace as hr\nfrom headrace import sinks\n"
        f"at, options = {secure_kafka.secure!r}, {str(file)!r}\n"
        f"source = hr.Kafka(at, topics=[{where.name!r}], format=hr.Json('id BIGINT'), options=options)\n"
        f"sink = sinks.Kafka(at, topic={target.name!r}, options=options)\n"
        "clicks = hr.Pipeline(name='clicks', source=source, sink=sink, guarantee='exactly-once')\n"
    )
    options = [word for name, value in spark_cluster.session.items() for word in ("--spark", f"{name}={value}")]
    command = [sys.executable, "-m", "headrace.cli.main", "run", str(app), "--until", "caught-up", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert len(read_committed(secure_kafka.bootstrap, target.name)) == 40
    logs = [log for node in spark_cluster.nodes for log in node.directory.rglob("stderr")]
    said = "".join(log.read_text() for log in logs) + done.stdout + done.stderr
    assert "sasl.jaas.config = [hidden]" in said  # so what is looked for would be there
    password = secure_kafka.users["app"]
    assert not [form for form in (password, json.dumps(password)[1:-1]) if form in said]


def test_topic_to_topic_with_dead_letters_and_the_words_of_java_in_a_file(secure_kafka, topic, spark, file):
    where, target, dead = topic([*numbered(50), b"{broken"]), topic(), topic()
    sink = sinks.Kafka(secure_kafka.secure, topic=target.name, options=file)
    made = pipeline(secure_kafka.secure, where, sink, str(file), dead_letters=hr.DeadLetters(topic=dead.name))
    made.run(until="caught-up", session=spark, fail_fast=True)
    found = [json.loads(record.value())["id"] for record in read_committed(secure_kafka.bootstrap, target.name)]
    assert sorted(found) == list(range(50))
    assert [letter.value for letter in DeadLetterAdmin(made).letters()] == [b"{broken"]


def test_a_certificate_of_the_client_is_a_login_too(secure_kafka, topic, spark, tmp_path):
    where = topic(numbered(10))
    sink = sinks.DuckDB(tmp_path / "rows.duckdb", "rows")
    made = pipeline(secure_kafka.tls, where, sink, secure_kafka.certificate_options())
    assert made.run(until="caught-up", session=spark, fail_fast=True).records == 10


@pytest.fixture
def wrong(secure_kafka, tmp_path):
    """What can be wrong: the address, the options, and what is said about it."""
    app, secure = secure_kafka.client("app"), secure_kafka.secure
    other = Certificate(tmp_path / "other", "password")
    tls_alone = {name: value for name, value in secure_kafka.certificate_options().items() if "keystore" not in name}

    def make(what):
        match what:
            case "password":
                return secure, {**app, "sasl.password": "wr0ng-secret"}, "refuses the user app.*invalid credentials"
            case "user":
                return secure, {**app, "sasl.username": "nobody"}, "refuses the user nobody"
            case "mechanism":
                return secure, {**app, "sasl.mechanism": "SCRAM-SHA-256"}, "Unsupported SASL mechanism"
            case "authority":
                other.make()
                return (
                    secure,
                    {**app, "ssl.ca.location": str(other.authority)},
                    f"cannot be verified with {other.authority}",
                )
            case "plaintext":
                return secure, {}, "expects TLS, got security.protocol=PLAINTEXT"
            case "certificate":
                return secure_kafka.tls, tls_alone, "this client's certificate"

    return make


@pytest.mark.parametrize("what", ["password", "user", "mechanism", "authority", "plaintext", "certificate"])
def test_what_is_wrong_with_a_login_is_reported_soon_and_without_the_password(wrong, what):
    bootstrap, options, said = wrong(what)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=said) as error:
        Admin(Client(bootstrap, options), 30).describe_cluster()
    assert time.monotonic() - began < SOON
    told = f"{error.value.message} {error.value.hint}"
    assert bootstrap in told
    assert not [value for name, value in options.items() if "password" in name and value in told]


def test_a_wrong_password_ends_a_run_of_any_kind_soon(secure_kafka, topic, wrong, spark, tmp_path):
    where = topic(numbered(1))
    bootstrap, options, said = wrong("password")
    rows = sinks.DuckDB(tmp_path / "rows.duckdb", "rows")
    target = sinks.Kafka(bootstrap, topic=f"{where.name}-copy", options=options)
    good = secure_kafka.client("app")
    for made in (pipeline(bootstrap, where, rows, options), pipeline(bootstrap, where, target, good)):
        began, seen = time.monotonic(), []
        with pytest.raises(ConfigError, match=said) as error:
            made.run(until="caught-up", session=spark, observer=seen.append)
        assert time.monotonic() - began < SOON
        assert "wr0ng-secret" not in f"{error.value.hint} {error.value} {seen} {made!r}"


def test_a_user_without_rights_gets_an_error(secure_kafka, topic, spark, tmp_path):
    where = topic(numbered(1))
    rows = sinks.DuckDB(tmp_path / "rows.duckdb", "rows")
    made = pipeline(secure_kafka.secure, where, rows, secure_kafka.client("guest"))
    with pytest.raises(ConfigError, match=r"(?i)authorization failed") as error:
        made.run(until="caught-up", session=spark)
    assert "grant this user READ" in str(error.value.hint)


def granted(secure_kafka, operation, name, kind=ResourceType.TOPIC, pattern=ResourcePatternType.LITERAL):
    right = AclBinding(kind, name, pattern, "User:guest", "*", operation, AclPermissionType.ALLOW)
    admin = AdminClient({"bootstrap.servers": secure_kafka.bootstrap, "log_level": 0})
    admin.create_acls([right])[right].result(10)


def test_a_right_that_only_the_executors_miss_ends_the_run_and_to_read_is_enough(secure_kafka, topic, spark, tmp_path):
    where = topic(numbered(7))
    rows = sinks.DuckDB(tmp_path / "rows.duckdb", "rows")
    made = pipeline(secure_kafka.secure, where, rows, secure_kafka.client("guest"))
    granted(secure_kafka, AclOperation.DESCRIBE, where.name)
    with pytest.raises(ConfigError, match=rf"executors: Not authorized to access topics: \[{where.name}\]"):
        made.run(until="caught-up", session=spark)
    granted(secure_kafka, AclOperation.READ, where.name)
    assert made.run(until="caught-up", session=spark, fail_fast=True).records == 7


def test_the_rights_that_the_page_names_are_enough_from_topic_to_topic(secure_kafka, topic, spark):
    where, target, dead = topic([*numbered(7), b"{broken"]), topic(), topic()
    guest = secure_kafka.client("guest")
    sink = sinks.Kafka(secure_kafka.secure, topic=target.name, options=guest)
    made = pipeline(secure_kafka.secure, where, sink, guest, dead_letters=hr.DeadLetters(topic=dead.name))
    granted(secure_kafka, AclOperation.READ, where.name)
    granted(secure_kafka, AclOperation.WRITE, target.name)
    granted(secure_kafka, AclOperation.WRITE, dead.name)
    granted(secure_kafka, AclOperation.READ, made.name, ResourceType.GROUP)
    granted(secure_kafka, AclOperation.WRITE, "headrace", ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED)
    assert made.run(until="caught-up", session=spark, fail_fast=True).records == 8
    assert len(read_committed(secure_kafka.bootstrap, target.name)) == 7


def test_to_look_at_records_needs_no_right_to_any_group(secure_kafka, topic, cli, tmp_path):
    where = topic(numbered(3))
    granted(secure_kafka, AclOperation.READ, where.name)
    guest = tmp_path / "guest.properties"
    guest.write_text("".join(f"{name}={value}\n" for name, value in secure_kafka.client("guest").items()))
    looking = ("consume", where.name, "--bootstrap", secure_kafka.secure, "--options-file", guest)
    done = cli(*looking)
    assert (done.code, len(done.out.splitlines())) == (0, 3), done.err
    refused = cli(*looking, "--group", f"not-granted-{where.name}")
    assert (refused.code, "grant this user READ on the group" in refused.line("hint: ")) == (2, True)


def test_a_file_that_the_executors_do_not_have_ends_the_run(secure_kafka, topic, spark, tmp_path):
    where = topic(numbered(1))
    options = {**secure_kafka.client("app"), "ssl.truststore.location": "/not-there/ca.pem"}
    rows = sinks.DuckDB(tmp_path / "rows.duckdb", "rows")
    with pytest.raises(ConfigError, match=r"/not-there/ca\.pem") as error:
        pipeline(secure_kafka.secure, where, rows, options).run(until="caught-up", session=spark)
    assert "on every executor" in str(error.value.hint)


def test_no_verb_ever_prints_a_password(secure_kafka, topic, spark, file, cli, tmp_path, monkeypatch):
    where = topic(numbered(5))
    config = tmp_path / "clicks.toml"
    config.write_text(
        'name = "clicks"\nguarantee = "exactly-once"\n'
        f'[source]\nkafka = "{secure_kafka.secure}"\ntopics = ["{where.name}"]\n'
        f'format = {{json = "id BIGINT"}}\noptions = "{file}"\n'
        f'[sink]\nduckdb = "{tmp_path / "rows.duckdb"}"\ntable = "rows"\n'
    )
    at = ("--bootstrap", secure_kafka.secure, "--options-file", file)
    words = [
        ("check", config),
        ("check", config, "--json"),
        ("run", config, "--until", "caught-up", "--log-format", "json"),
        ("run", config, "--until", "caught-up", "--log-format", "plain"),
        ("offsets", "show", config),
        ("transactions", "list", *at),
        ("topics", "list", *at),
        ("doctor", *at),
    ]
    password = secure_kafka.users["app"]
    for verb in words:
        done = cli(*verb)
        assert done.code == 0, done
        said = done.out + done.err
        assert password not in said
        assert json.dumps(password) not in said
        assert "ScramLoginModule" not in said


@pytest.mark.parametrize("verb", [("topics", "list"), ("transactions", "list"), ("doctor",)])
def test_a_tool_says_soon_that_a_password_is_wrong(secure_kafka, cli, verb, file, monkeypatch):
    monkeypatch.setenv("TEST_PASSWORD", "wr0ng-secret")
    began = time.monotonic()
    done = cli(*verb, "--bootstrap", secure_kafka.secure, "--options-file", file)
    assert time.monotonic() - began < 2 * SOON  # one of them starts a Java machine first
    assert done.code == (1 if verb == ("doctor",) else 2)
    assert "invalid credentials" in done.out + done.err
    assert "wr0ng-secret" not in done.out + done.err


def test_the_doctor_reaches_a_broker_with_options(secure_kafka):
    check = doctor.check_broker(secure_kafka.secure, secure_kafka.client("guest"))
    assert check.state == "ok", check
