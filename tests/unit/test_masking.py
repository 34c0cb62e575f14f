"""Secrets in addresses, connection strings, settings and messages are never shown."""

import json
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import sinks, stores
from headrace.masking import is_secret, masked, redact
from headrace.sinks.jdbc_java import Database
from headrace.sinks.redis_tasks import Place


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://localhost/app", "postgresql://localhost/app"),
        ("postgresql://ann@localhost:5432/app", "postgresql://ann@localhost:5432/app"),
        ("postgresql://ann:secret@localhost/app", "postgresql://ann:***@localhost/app"),
        ("postgresql://ann:se:cr@et@localhost/app", "postgresql://ann:***@localhost/app"),
        ("postgresql://ann:sec/ret@localhost/app", "postgresql://ann:***@localhost/app"),
        ("postgresql://ann@server:secret@localhost/app", "postgresql://ann@server:***@localhost/app"),
        ("postgresql://h/app?user=ann&password=secret&x=1", "postgresql://h/app?user=ann&password=***&x=1"),
        ("redis://:secret@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("redis://secret@localhost:6379/0", "redis://***@localhost:6379/0"),
        ("https://secret@registry:8081/apis", "https://***@registry:8081/apis"),
        ("http://localhost:8081/apis", "http://localhost:8081/apis"),
        ("https://registry/apis?token=secret", "https://registry/apis?token=***"),
        ("host=h user=ann", "host=h user=ann"),
        ("host=h passfile=/home/ann/.pgpass", "host=h passfile=/home/ann/.pgpass"),
        ("host=h password=sec&ret user=ann", "host=h password=*** user=ann"),
        ("host=h password=sec ret user=ann", "host=h password=*** user=ann"),
        ("host=h password=a://b user=ann", "host=h password=*** user=ann"),
        ("host=h password='a b://c' user=ann", "host=h password=*** user=ann"),
        ("password = 'sec \\' ret' host=h", "password = *** host=h"),
        ("host=h PASSWORD=secret", "host=h PASSWORD=***"),
        ("host=h sslpassword=secret", "host=h sslpassword=***"),
        ("host=h password='secret", "host=h password=***"),
        ("jdbc:sqlserver://h;user=a;password={se;cr}}et};x=1", "jdbc:sqlserver://h;user=a;password=***;x=1"),
        ("jdbc:sqlserver://h;user=a;pwd=secret;x=1", "jdbc:sqlserver://h;user=a;pwd=***;x=1"),
        ("jdbc:mysql://h/d?user=a&trustCertificateKeyStorePassword=secret&x=1",
         "jdbc:mysql://h/d?user=a&trustCertificateKeyStorePassword=***&x=1"),
        ("jdbc:databricks://h;UID=token;PWD=secret;ssl=1", "jdbc:databricks://h;UID=token;PWD=***;ssl=1"),
        ("jdbc:oracle:thin:app/secret@db:1521:x", "jdbc:oracle:thin:app/***@db:1521:x"),
        ("jdbc:oracle:thin:app/sec@ret@//db:1521/x", "jdbc:oracle:thin:app/***@//db:1521/x"),
        ("jdbc:mysql://address=(host=h)(password=secret)(port=1)/d", "jdbc:mysql://address=(host=h)(password=***)(port=1)/d"),
        ("{'host': 'h', 'password': 'secret', 'x': 1}", "{'host': 'h', 'password': ***, 'x': 1}"),
        ("Authorization: Bearer secret", "Authorization: Bearer ***"),
    ],
)  # fmt: skip
def test_the_secret_of_an_address_is_masked_and_the_rest_is_shown(address, shown):
    assert masked(address) == shown


# A value that is not quoted ends where the next key begins, so it can hold no equals sign; nor begin with a quote.
UNQUOTED = st.text(min_size=1).map(lambda text: text.replace("=", "").strip(" \t\r\n'\"{&;,()") or "x")
ANYTHING = st.text(min_size=1)
ENCODED = ANYTHING.map(lambda text: quote(text, safe="") or "x")
LIBPQ = ANYTHING.map(lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'")
BRACES = ANYTHING.map(lambda text: "{" + text.replace("}", "}}") + "}")
SHAPES = [
    ("postgresql://ann:SECRET@host/app", ANYTHING),
    ("postgresql://ann@server:SECRET@host/app", ANYTHING),
    ("postgresql://ann:SECRET@host/app", ENCODED),
    ("mongodb+srv://ann:SECRET@host/app?authSource=admin", ENCODED),
    ("redis://:SECRET@localhost:6379/0", ANYTHING),
    ("rediss://SECRET@localhost:6379/0", ENCODED),
    ("https://SECRET@registry", ENCODED),
    ("https://registry/apis?access_token=SECRET&x=1", ENCODED),
    ("https://user:SECRET@registry:8081/apis", ANYTHING),
    ("postgresql://host/app?user=ann&password=SECRET&x=1", ENCODED),
    ("postgresql://host/app?user=ann&password=SECRET", UNQUOTED),
    ("host=h user=ann password=SECRET", UNQUOTED),
    ("host=h password=SECRET user=ann", UNQUOTED),
    ("host=h password=SECRET user=ann", LIBPQ),
    ("host=h sslpassword = SECRET user=ann", LIBPQ),
    ("jdbc:postgresql://h/d?user=a&password=SECRET&ssl=true", ENCODED),
    ("jdbc:mysql://ann:SECRET@h/d", ENCODED),
    ("jdbc:sqlserver://h;user=a;password=SECRET;encrypt=true", BRACES),
    ("jdbc:sqlserver://h;user=a;password=SECRET;encrypt=true", UNQUOTED),
    ("jdbc:oracle:thin:app/SECRET@//db:1521/x", ANYTHING),
    ("jdbc:snowflake://h/?user=a&private_key_file_pwd=SECRET&db=d", ENCODED),
]


@pytest.mark.parametrize(("shape", "secrets"), SHAPES, ids=[shape for shape, _ in SHAPES])
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_shown_does_not_depend_on_the_secret(shape, secrets, data):
    secret = data.draw(secrets)
    assert masked(shape.replace("SECRET", secret)) == masked(shape.replace("SECRET", "s"))
    assert "SECRET" not in masked(shape)


@given(
    secret=ANYTHING, name=st.sampled_from(["password", "sasl.password", "aws_secret_access_key", "sasl.jaas.config"])
)
@example(secret="'", name="password")
@example(secret='"', name="password")
def test_settings_as_python_and_json_show_them_are_masked(secret, name):
    for write in (repr, json.dumps):
        shown = masked(write({"a": 1, name: secret, "b": 2}))
        assert shown == masked(write({"a": 1, name: "s", "b": 2}))


@given(secret=st.text(min_size=1), before=st.text(), after=st.text())
@example(secret="0", before="0", after="")
def test_a_known_secret_is_redacted_from_any_text_in_any_form(secret, before, after):
    for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]):
        shown = redact(before + form + after, [secret])
        assert form not in shown or form in "***"


def test_longer_secrets_are_redacted_before_those_they_contain():
    assert redact("ab abc", ["ab", "abc", ""]) == "*** ***"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.password", True),
        ("ssl.key.password", True),
        ("sasl.jaas.config", True),
        ("sasl.oauthbearer.client.secret", True),
        ("ssl.key.pem", True),
        ("ssl.keystore.key", True),
        ("fs.s3a.access.key", True),
        ("spark.authenticate.secret", True),
        ("pwd", True),
        ("bootstrap.servers", False),
        ("key.deserializer", False),
        ("sasl.username", False),
    ],
)
def test_names_of_settings_whose_values_are_secret(name, secret):
    assert is_secret(name) is secret


DESCRIBED = {
    "store postgres": lambda: stores.Postgres("postgresql://ann@server:hidden@db/app"),
    "store redis": lambda: stores.Redis("redis://:hidden@localhost"),
    "store cassandra": lambda: stores.Cassandra("h", keyspace="k", username="ann", password="hidden"),
    "store kafka": lambda: stores.Kafka("h:9092", options={"sasl.password": "hidden"}),
    "sink postgres": lambda: sinks.Postgres("host=h password='hid den://hidden'", "t"),
    "sink redis": lambda: sinks.Redis("redis://hidden@localhost", "users"),
    "sink mongo": lambda: sinks.Mongo("mongodb://ann:hidden@localhost", "d.t"),
    "sink jdbc": lambda: sinks.Jdbc("jdbc:oracle:thin:a/hidden@h", table="t", properties={"password": "hidden"}),
    "sink cassandra": lambda: sinks.Cassandra("h", "k.t", username="ann", password="hidden"),
    "sink iceberg": lambda: sinks.Iceberg("a.b", properties={"uri": "postgresql://a:hidden@h/d", "token": "hidden"}),
    "sink delta": lambda: sinks.Delta("s3://b/t", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"}),
    "sink kafka": lambda: sinks.Kafka("h:9092", topic="t", options={"sasl.password": "hidden"}),
    "source kafka": lambda: hr.Kafka("h:9092", topics=["t"], options={"sasl.password": "hidden"}),
    "delta place": lambda: sinks.Delta("s3://b/t", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})._place,
    "cassandra tasks": lambda: sinks.Cassandra("h", "k.t", username="ann", password="hidden").__dict__,
    "database": lambda: Database("jdbc:sqlserver://h;pwd=hidden", {"password": "hidden"}),
    "redis place": lambda: Place("redis://:hidden@localhost", "users", "sink"),
    "redis marks": lambda: stores.Redis("redis://:hidden@localhost").marks("p", 1.0),
    "postgres marks": lambda: stores.Postgres("postgresql://ann:hidden@localhost/app").marks("p", 1.0),
}


@pytest.mark.parametrize("made", DESCRIBED.values(), ids=DESCRIBED)
def test_no_store_sink_or_task_shows_its_secret(made):
    assert "hidden" not in repr(made()) + str(made())
