"""Secrets in addresses, connection strings, settings and messages are never shown."""

import json
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import sinks, stores
from headrace.connectors.jdbc.connection import Database
from headrace.connectors.redis.writer import RedisTarget
from headrace.engine.engine import DirectEngine
from headrace.errors import HeadraceError
from headrace.formats.schema_registry import SchemaRegistry, check_url
from headrace.support.redaction import is_secret, masked, redact

ANYTHING_ELSE = st.text(min_size=1)


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password: hidden", "password: ***"),
        ("user: ann\npassword: hidden word\nport: 1", "user: ann\npassword: ***\nport: 1"),
        ("[('user', 'ann'), ('password', 'hidden')]", "[('user', 'ann'), ('password', ***)]"),
        ("[('password', b'hidden'), 1]", "[('password', b***), 1]"),
        ("psql --password hidden --host h", "psql --password *** --host h"),
        ("psql --password 'hidden word' --host h", "psql --password *** --host h"),
        ("psql --password=hidden --host=h", "psql --password=*** --host=h"),
        ("X-API-Key: hidden\r\nHost: h", "X-API-Key: ***\r\nHost: h"),
        ("X-API-Key:hidden\r\nHost: h", "X-API-Key:***\r\nHost: h"),
        ("Authorization:Negotiate hidden\nHost: h", "Authorization:Negotiate ***\nHost: h"),
        ("mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:hidden&x=1",
         "mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:***&x=1"),
        ('{"my password": "hidden", "a": 1}', '{"my password": ***, "a": 1}'),
        ("{'db:password': 'hidden', 'a': 1}", "{'db:password': ***, 'a': 1}"),
        ("{'passwords': ['hidden', 'hidden']}", "{'passwords': ***"),
        ("['psql', '--password', 'hidden', '-v']", "['psql', '--password', ***, '-v']"),
        ("Map(user -> ann, password -> hidden)", "Map(user -> ann, password -> ***"),
        ("adls.connection-string=hidden x=1", "adls.connection-string=*** x=1"),
        ("aws_sse_customer_key_base64=hidden x=1", "aws_sse_customer_key_base64=*** x=1"),
        ("Authorization: hidden\nHost: h", "Authorization: ***\nHost: h"),
        ("Proxy-Authorization: Digest a=hidden, b=hidden", "Proxy-Authorization: Digest ***"),
        ("basic.auth.user.info=ann:hidden", "basic.auth.user.info=***"),
        ("ssl.key.pem=hidden ssl.ca.location=/a", "ssl.key.pem=*** ssl.ca.location=/a"),
        ("https://maps/api?key=hidden&x=1", "https://maps/api?key=***&x=1"),
        ("https://maps/api?x=1&key=hidden", "https://maps/api?x=1&key=***"),
        ("host=h sslkey=hidden user=ann", "host=h sslkey=*** user=ann"),
        ("passcode=hidden", "passcode=***"),
        ("jdbc:bigquery://h;OAuthPvtKey=hidden;x=1", "jdbc:bigquery://h;OAuthPvtKey=***;x=1"),
        ("host=h dbpass=hidden user=ann", "host=h dbpass=*** user=ann"),
        ("jwt=hidden client_assertion=hidden x=1", "jwt=*** client_assertion=*** x=1"),
        ("Set-Cookie: sid=hidden; Path=/\nHost: h", "Set-Cookie: ***\nHost: h"),
        ("fs.azure.sas.box.acc.blob.core.windows.net=hidden", "fs.azure.sas.box.acc.blob.core.windows.net=***"),
        ("<user>ann</user><password>hidden</password>", "<user>ann</user><password>***</password>"),
        ("<ns:password type='a'>hidden</ns:password>", "<ns:password type='a'>***</ns:password>"),
        ("<name>fs.s3a.secret.key</name>\n<value>hidden</value>", "<name>fs.s3a.secret.key</name>\n<value>***</value>"),
        ("a -----BEGIN PRIVATE KEY-----\nhidden=\n-----END PRIVATE KEY----- b", "a *** b"),
        ("-----BEGIN RSA PRIVATE KEY-----\\nhidden", "***"),
        ("cannot reach ann:hidden@broker:9092 now", "cannot reach ann:***@broker:9092 now"),
        ("ann:hid:d@en@broker:9092", "ann:***@broker:9092"),
        ("to=http%3A%2F%2Fh%3Fuser%3Dann%26password%3Dhidden%26x%3D1",
         "to=http%3A%2F%2Fh%3Fuser%3Dann%26password%3D***%26x%3D1"),
        ("to=http%3A%2F%2Fh%3Fkey%3Dhidden", "to=http%3A%2F%2Fh%3Fkey%3D***"),
        ('{"a": "{\\"password\\": \\"hidden\\", \\"b\\": 1}"}', '{"a": "{\\"password\\": ***, \\"b\\": 1}"}'),
    ],
)  # fmt: skip
def test_secrets_are_masked_in_every_other_shape(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "sinks.Postgres('postgresql://h/d', 'rows', key=['id'])",
        "the value has a column key, which is the name of the decoded key",
        "rename the field, or leave out key_format= and take _kafka.key",
        "partition_key=user, sort_key=at",
        "key.deserializer=org.apache.kafka.common.serialization.StringDeserializer",
        "clicks[0] offset 12: field amount: expected DECIMAL(10,2), got 'ten'",
        "expected one of 'user', 'password', 'host'",
        "brokers at 10.0.0.1:9092, secrets.example.com:9092",
        "token:0:10 at http://token-service:8080/x, secrets:9092",
        "2026-11-15T12:54:39.866000+00:00 orders:0:10",
        "a <= b and c => d; x@y",
        "basic.auth.credentials.source is not set, spark.authenticate=true, author=ann",
        "ssl.key.location=/etc/key.pem",
    ],
)
def test_ordinary_messages_are_shown_whole(text):
    assert masked(text) == text


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(str.strip).filter(bool)
SHAPED = [
    ("password: {}", LINE),
    ("X-Auth-Token: {}\nHost: h", LINE),
    ("run --client-secret {} --x", st.text("abc/+!%&(){}[]", min_size=1)),
    ("<a><password>{}</password></a>", st.text(st.characters(codec="utf-8", exclude_characters="<")).filter(str.strip)),
    ("<user>ann</user>-----BEGIN PRIVATE KEY-----{}-----END PRIVATE KEY-----", st.text("abcXYZ+/=\n \\")),
    ("at ann:{}@host:9092 there", st.text("abc:/@!%&=[]{}", min_size=1).filter(lambda text: not text.startswith("//"))),
    ("?next=h%3Fpassword%3D{}%26x%3D1", st.text(min_size=1).map(lambda text: quote(quote(text, safe=""), safe=""))),
    ("?key={}&x=1", st.text(min_size=1).map(lambda text: quote(text, safe=""))),
    ("?props=AWS_SESSION_TOKEN:{}&x=1", st.text("abcXYZ+/=_-", min_size=1).filter(lambda text: text[:2] != "//")),
]


@pytest.mark.parametrize(("shape", "secrets"), SHAPED, ids=[shape for shape, _ in SHAPED])
@settings(max_examples=60)
@given(data=st.data())
def test_what_other_shapes_show_does_not_depend_on_the_secret(shape, secrets, data):
    secret = data.draw(secrets)
    assert masked(shape.replace("{}", secret)) == masked(shape.replace("{}", "s"))


@given(secret=ANYTHING_ELSE, name=st.sampled_from(["password", "passcode", "basic.auth.user.info", "fs.azure.sas.x"]))
def test_pairs_as_python_shows_them_are_masked(secret, name):
    assert masked(repr([("a", "b"), (name, secret)])) == masked(repr([("a", "b"), (name, "s")]))


NAMES = [
    "password", "ssl.key.pem", "sslkey", "passcode", "basic.auth.user.info", "fs.azure.sas.a.b", "x-api-key", "sig",
    "oauthpvtkey", "cookie", "customer_key_base64", "connection-string",
    "bootstrap.servers", "key.deserializer", "sasl.username", "partition_key", "ssl.key.location", "row.key",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "shape", ["{}=hidden", "{}: hidden", "{}:hidden", "{{'{}': 'hidden'}}", "<{}>hidden</{}>", "--{} hidden"]
)
def test_names_of_settings_and_texts_agree_on_what_is_secret(name, shape):
    assert ("hidden" not in masked(shape.replace("{}", name).replace("{{", "{").replace("}}", "}"))) is is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "http://", "http://a", "a:", "@", "a@", "a:@", "://@", "password", "password=", "password={", "password='", "=",
        'password="\\', "password: ", "('password', ", "--password ", "<password>", "<password ", "-----BEGIN A-----",
        "jdbc:oracle:thin:", "Bearer ", "password%3D", " ", "password=' a=", "a=password={ ", "'password':", "token:",
        "password->", "'password':\\\"", "://@ password=@",
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "@", "}x", "'x"])
@pytest.mark.timeout(60)
def test_the_time_is_linear_in_the_text(text, end):
    """What takes seconds for 20 KB if it is quadratic takes minutes for this."""
    masked(text * (200_000 // len(text)) + end)
    masked(text + "a" * 200_000 + end)


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


def entry(secret, write=json.dumps, times=1):
    """JSON, or what Python shows, in itself so many times."""
    text = write({"a": 1, "password": secret, "b": 2})
    for _ in range(1, times):
        text = write(text)
    return text


def as_it_is(secret):
    return secret


PIECES = [
    ("jdbc:sqlserver://h:1433;user=a;password={};x=1", as_it_is),
    ("jdbc:sqlserver://h:1433;user=a;password={};x=1", lambda secret: "{" + secret.replace("}", "}}") + "}"),
    ("jdbc:postgresql://h:5432/d?user=a&password={}&x=1", as_it_is),
    ("postgresql://ann:other@h:5432/d?sslpassword={}", as_it_is),
    ("http://u:other@h:1/x?token={}&x=1", as_it_is),
    ("http://h:1 Authorization: Bearer {}", lambda secret: "".join(secret.split()).replace('"', "").replace("'", "")),
    ("http://h:1 --password {} --x", lambda secret: "'" + secret.replace("'", "") + "'"),
    ("https://h <password>{}</password>", lambda secret: secret.replace("<", "")),
    ("https://u:other@h X-Api-Key: {}\nHost: h", as_it_is),
    ("jdbc:oracle:thin:app/other@db:1521:x password={}", as_it_is),
    ("s3://u:other@h {}", entry),
    ("s3://h {}", lambda secret: entry(secret, repr)),
    ("{}", lambda secret: entry(secret, times=2)),
    ("http://h {}", lambda secret: entry(secret, times=3)),
    ("http://h {}", lambda secret: entry(secret, repr, times=2)),
]
BETWEEN = [*"@:/?#&=;,'\"\\ <>(){}[]|%+$", "@x:", "://", "=@", "%40", "\\'", '\\"', "''", "}}", ", 'a': '", "@h/"]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(("shape", "write"), PIECES, ids=[f"{n} {shape}" for n, (shape, _) in enumerate(PIECES)])
def test_no_piece_of_a_secret_is_shown_whatever_stands_beside_it(shape, write, between):
    shown = masked(shape.replace("{}", write(f"first{between}second")))
    assert "first" not in shown
    assert "second" not in shown


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
    "sink mongo with a token": lambda: sinks.Mongo(
        "mongodb+srv://h/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:hidden", "d.t"
    ),
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
    "delta place": lambda: sinks.Delta("s3://b/t", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})._path,
    "cassandra tasks": lambda: sinks.Cassandra("h", "k.t", username="ann", password="hidden").__dict__,
    "database": lambda: Database("jdbc:sqlserver://h;pwd=hidden", {"password": "hidden"}),
    "redis place": lambda: RedisTarget("redis://:hidden@localhost", "users", "sink"),
    "redis marks": lambda: stores.Redis("redis://:hidden@localhost").marks("p", 1.0),
    "postgres marks": lambda: stores.Postgres("postgresql://ann:hidden@localhost/app").marks("p", 1.0),
}


@pytest.mark.parametrize("made", DESCRIBED.values(), ids=DESCRIBED)
def test_no_store_sink_or_task_shows_its_secret(made):
    assert "hidden" not in repr(made()) + str(made())


def ask_registry(url):
    check_url(url)
    SchemaRegistry(url).get_schema(1)


CONNECTING = {
    "store postgres": lambda secret: stores.Postgres(f"postgresql://ann:{secret}@127.0.0.1:1/app").open("p"),
    "store postgres, user@server": lambda secret: stores.Postgres(f"postgresql://a@s:{secret}@127.0.0.1:1/x").open("p"),
    "store postgres, words": lambda secret: stores.Postgres(f"host=127.0.0.1 port=1 password={secret}").open("p"),
    "store redis": lambda secret: stores.Redis(f"redis://:{secret}@127.0.0.1:1/0").open("p"),
    "sink postgres": lambda secret: sinks.Postgres(f"postgresql://a:{secret}@127.0.0.1:1/x", "t").open("p"),
    "sink redis": lambda secret: sinks.Redis(f"redis://:{secret}@127.0.0.1:1/0", "t").check_reachable(),
    "sink mongo": lambda secret: sinks.Mongo(
        f"mongodb://ann:{secret}@127.0.0.1:1/?serverSelectionTimeoutMS=100", "d.t"
    ).check_reachable(),
    "sink iceberg": lambda secret: sinks.Iceberg(
        "a.b", properties={"type": "sql", "uri": f"postgresql+psycopg://ann:{secret}@127.0.0.1:1/d"}
    ).check_reachable(),
    "registry": lambda secret: ask_registry(f"http://ann:{secret}@127.0.0.1:1"),
}
SEPARATORS = ["/", "#", "?", "@", ":", " ", "%zz", "'", "[", "@x:"]


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("connect", CONNECTING.values(), ids=CONNECTING)
def test_no_driver_quotes_a_piece_of_a_password_with_special_characters(
    connect, separator, recwarn, tmp_path, monkeypatch
):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    with pytest.raises(HeadraceError) as failed:
        connect(f"first{separator}second")
    said = f"{failed.value.message} {failed.value.hint} {[str(warning.message) for warning in recwarn]}"
    assert not [piece for piece in ("first", "second") if piece in said], said


WITH_OPTIONS = {
    "kafka": lambda: sinks.Kafka("h:9092", topic="t", options={"sasl.password": "hidden", "client.id": "shown"}),
    "jdbc": lambda: sinks.Jdbc("jdbc:x:y", table="t", properties={"password": "hidden", "user": "shown"}),
    "delta": lambda: sinks.Delta("s3://b/t", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden", "REGION": "shown"}),
    "iceberg": lambda: sinks.Iceberg("a.b", properties={"token": "hidden", "uri": "shown"}),
    "cassandra": lambda: sinks.Cassandra("h", "k.t", username="shown", password="hidden"),
}
WITH_OPTIONS["fanout"] = lambda: sinks.Fanout([make() for name, make in WITH_OPTIONS.items() if name != "fanout"])


@pytest.mark.parametrize("made", WITH_OPTIONS.values(), ids=WITH_OPTIONS)
def test_an_error_of_sparks_shows_no_secret_of_the_sinks_options(made):
    engine = DirectEngine.__new__(DirectEngine)
    engine._sink, engine._inputs = made(), SimpleNamespace(by_name={})
    error = engine._redact_secrets(ValueError("shown: the login with hidden failed"))
    assert "hidden" not in str(error)
    assert "shown" in str(error)
