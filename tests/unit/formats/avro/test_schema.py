"""Avro: the schema that is derived from columns, what is refused, and what a registry's answers mean."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.formats import registry_http
from headrace.formats.avro import schema as avro_schema
from headrace.formats.avro.compatibility import spark_type
from headrace.formats.schema_registry import SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "http://user:secret@localhost:8081"


def struct(**fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True} for n, t in fields.items()]}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(value: Any, key: str = "string") -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("spark", "avro"),
    [
        ("boolean", "boolean"),
        ("byte", "int"),
        ("short", "int"),
        ("integer", "int"),
        ("long", "long"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("binary", "bytes"),
        ("decimal(10,2)", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        ("date", {"type": "int", "logicalType": "date"}),
        ("timestamp", {"type": "long", "logicalType": "timestamp-micros"}),
        ("timestamp_ntz", {"type": "long", "logicalType": "local-timestamp-micros"}),
        (array("long"), {"type": "array", "items": ["null", "long"]}),
        (mapping(array("string")), {"type": "map", "values": ["null", {"type": "array", "items": ["null", "string"]}]}),
    ],
)
def test_a_type_of_spark_has_one_of_avro_and_may_be_null(spark: Any, avro: Any) -> None:
    made = avro_schema.record({"c": spark}, "r", "com.example")
    assert made == {
        "type": "record",
        "name": "r",
        "namespace": "com.example",
        "fields": [{"name": "c", "type": ["null", avro], "default": None}],
    }


def test_a_record_within_is_named_by_the_path_to_it() -> None:
    made = avro_schema.record({"a": struct(b=struct(c="long")), "b": array(struct(c="string"))}, "r", "x.y")
    a, b = (field["type"][1] for field in made["fields"])
    assert (a["namespace"], a["name"]) == ("x.y.r", "a")
    inner = a["fields"][0]["type"][1]
    assert (inner["namespace"], inner["name"]) == ("x.y.r.a", "b")
    assert (b["items"][1]["namespace"], b["items"][1]["name"]) == ("x.y.r", "b")


NAMES = st.sampled_from(["a", "b", "a_b", "r", "_"])
TYPES = st.recursive(
    st.sampled_from(["long", "string", "decimal(5,1)"]),
    lambda inner: st.one_of(
        inner.map(array), inner.map(mapping), st.dictionaries(NAMES, inner, min_size=1).map(lambda f: struct(**f))
    ),
    max_leaves=12,
)


def names(schema: Any, namespace: str = "") -> Iterator[str]:
    """Full names of all the records in a schema, as Avro resolves them."""
    if isinstance(schema, list):
        for one in schema:
            yield from names(one, namespace)
    elif isinstance(schema, dict) and schema["type"] == "record":
        inside = schema.get("namespace", namespace)
        yield f"{inside}.{schema['name']}"
        for field in schema["fields"]:
            yield from names(field["type"], inside)
    elif isinstance(schema, dict):
        yield from names(schema.get("items", schema.get("values")), namespace)


@given(st.dictionaries(NAMES, TYPES, min_size=1))
def test_no_two_records_of_a_schema_have_the_same_name(columns: dict[str, Any]) -> None:
    found = list(names(avro_schema.record(columns, "r")))
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("columns", "message", "hint"),
    [
        ({"zip code": "string"}, "'zip code' has no valid Avro name", "zip_code"),
        ({"1st": "string"}, "'1st' has no valid Avro name", "_1st"),
        ({"größe": "string"}, "'größe' has no valid Avro name", "gr__e"),
        ({"a": array(struct(**{"b-c": "long"}))}, r"'a\.b-c' has no valid Avro name", "b_c"),
        ({"a": "variant"}, "a is variant", "CAST"),
        ({"a": struct(b="void")}, r"a\.b is void", "CAST"),
        ({"a": mapping("long", key="integer")}, "a is a map with keys of integer", "transform_keys"),
        ({"a": struct()}, "a is a struct without fields", "leave it out"),
        ({}, "no columns", "select"),
    ],
)
def test_what_avro_cannot_take_is_refused_with_its_name_and_the_cure(
    columns: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        avro_schema.record(columns, "r")
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(("text", "name"), [("clicks", "clicks"), ("clicks.v1-eu", "clicks_v1_eu"), ("1st", "_1st")])
def test_a_topic_gives_its_record_a_name(text: str, name: str) -> None:
    assert avro_schema.nearest_name(text) == name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"registry": "localhost:8081"}, "expected the URL of a schema registry"),
        ({"registry": "http://localhost:eighty"}, "expected the URL of a schema registry"),
        ({"registry": "http://user:secret@local host:8081"}, "expected the URL of a schema registry"),
        ({"registry": 8081}, "expected the URL of a schema registry, got 8081"),
        ({"registry": URL, "subject": ""}, "is empty"),
        ({"registry": URL, "name": "a b"}, "not a valid name"),
        ({"registry": URL, "namespace": "com..x"}, "not a valid namespace"),
        ({"registry": URL, "schema": "{"}, "not JSON"),
        ({"registry": URL, "schema": '"lung"'}, "expected the Avro schema of a record or of a primitive type"),
        ({"schema": '["null", "string"]'}, "expected the Avro schema of a record or of a primitive type"),
        ({"schema": '{"a": 1}'}, "expected the Avro schema of a record or of a primitive type"),
        ({"registry": URL, "schema": '{"type": "record"}', "name": "r"}, "its own name"),
        ({"schema": URL}, "is a URL, not a schema"),
        ({"schema": "none-such.avsc"}, "cannot read"),
        ({"schema": '"string"', "subject": "a"}, "needs registry="),
        ({}, "got neither"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        hr.Avro(**arguments)
    assert "secret" not in refused.value.message


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    text = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
    (tmp_path / "r.avsc").write_text(text)
    assert hr.Avro(tmp_path / "r.avsc") == hr.Avro(str(tmp_path / "r.avsc")) == hr.Avro(text)


def test_without_a_registry_the_bytes_are_those_of_the_schema_alone() -> None:
    assert (
        hr.Avro('{"type": "record"}').encode_expr({"id": "long"}, "t")
        == 'to_avro(struct(`id`), \'{"type": "record"}\')'
    )
    assert hr.Avro('"string"').encode_expr({"id": "long", "value": "string"}, "t") == "to_avro(`value`, '\"string\"')"
    with pytest.raises(ConfigError, match="one column, value LONG"):
        hr.Avro('"long"').encode_expr({"value": "string"}, "t")


def test_a_column_that_names_the_topic_needs_a_subject() -> None:
    with pytest.raises(ConfigError, match="topic_column") as refused:
        hr.Avro(registry=URL).encode_expr({"a": "long"}, None)
    assert "subject=" in str(refused.value.hint)


class Registry(BaseHTTPRequestHandler):
    """Answers as it is told, for no registry can be made to fail in all these ways."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.path, dict(self.headers), body))
        status, answer = server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        server: Any = self.server
        status, answer = server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = HTTPServer(("127.0.0.1", 0), Registry)
    made.asked, made.answer = [], (200, b'{"id": 258}')
    made.url = f"http://user:p%40ss@127.0.0.1:{made.server_port}/base/"
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_schema_is_registered_once_and_its_id_stands_before_the_row(server: Any) -> None:
    fmt = hr.Avro(registry=server.url)
    sql = fmt.encode_expr({"id": "long"}, "c.1")
    assert sql.startswith("concat(X'0000000102', to_avro(struct(`id`), '{")
    assert fmt.encode_expr({"id": "long"}, "c.1") == sql
    ((path, headers, body),) = server.asked
    assert path == "/base/subjects/c.1-value/versions"
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"user:p@ss").decode()
    assert headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
    assert json.loads(body["schema"])["name"] == "c_1"

    fmt.encode_expr({"id": "long", "more": "long"}, "c.1")
    hr.Avro(registry=server.url, subject="a/b", schema='{"type": "record"}').encode_expr({"id": "long"}, None)
    assert [path for path, _, _ in server.asked[1:]] == [path, "/base/subjects/a%2Fb/versions"]
    assert server.asked[2][2] == {"schema": '{"type": "record"}'}


def test_what_was_asked_does_not_make_two_of_them_differ(server: Any) -> None:
    one, other = hr.Avro(registry=server.url), hr.Avro(registry=server.url)
    one.encode_expr({"id": "long"}, "t")
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert "p%40ss" not in repr(one)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            (409, b'{"error_code": 409, "message": "LONG is not STRING"}'),
            ConfigError,
            "for t-value.*LONG is not STRING",
        ),
        ((401, b""), ConfigError, "denies this user"),
        ((403, b'{"message": "no rights"}'), ConfigError, "denies this user.*no rights"),
        ((404, b"<html>"), ConfigError, "rejects the schema for t-value: 404"),
        ((422, b'{"message": "Invalid schema"}'), ConfigError, "422 Invalid schema"),
        ((429, b""), RetriableError, "reports a temporary failure"),
        ((503, b'{"message": "no leader"}'), RetriableError, "503 no leader"),
        ((200, b"<html>"), ConfigError, "did not return a schema registry response"),
        ((200, b'{"id": "1"}'), ConfigError, "did not return a schema registry response"),
        ((200, b"[]"), ConfigError, "did not return a schema registry response"),
    ],
)
def test_an_answer_means_fix_it_or_try_again(
    server: Any, answer: tuple[int, bytes], kind: type[HeadraceError], message: str
) -> None:
    server.answer = answer
    with pytest.raises(kind, match=message) as caught:
        SchemaRegistry(server.url).register_schema("t-value", "{}")
    assert "p%40ss" not in caught.value.message + str(caught.value.hint)


def test_only_what_a_registry_itself_says_is_not_there_is_not_there(server: Any) -> None:
    for code in (40401, 40402, 40403):
        server.answer = (404, json.dumps({"error_code": code, "message": "not found"}).encode())
        assert SchemaRegistry(server.url).get_schema(1) is None
        assert SchemaRegistry(server.url).get_versions("t") == []
    server.answer = (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}')  # of a path that is wrong
    with pytest.raises(ConfigError, match="404"):
        SchemaRegistry(server.url).get_schema(1)


def test_a_registry_that_is_silent_or_gone_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_http, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(RetriableError, match="does not respond"):
            SchemaRegistry(url).register_schema("t", "{}")
        assert time.monotonic() - begun < 5
    with pytest.raises(RetriableError, match="does not respond"):
        SchemaRegistry(url).register_schema("t", "{}")


def test_the_columns_of_a_schema_are_asked_for_with_nothing_substituted() -> None:
    """On a session of a user's, `${env:NAME}` in a default of a registry's schema would be replaced."""
    settings = {"spark.sql.variable.substitute": "true", "spark.sql.parser.escapedStringLiterals": "true"}
    seen: list[dict[str, str]] = []

    class Frame:
        def selectExpr(self, text: str) -> Any:
            seen.append(dict(settings))
            return SimpleNamespace(schema={"row": SimpleNamespace(dataType=SimpleNamespace(jsonValue=dict))})

    conf = SimpleNamespace(get=settings.get, set=settings.__setitem__)
    java = SimpleNamespace(sessionUUID=lambda: "a session")
    spark: Any = SimpleNamespace(conf=conf, createDataFrame=lambda rows, schema: Frame(), _jsparkSession=java)
    spark_type(spark, "{}")
    assert [set(one.values()) for one in seen] == [{"false"}]
    assert set(settings.values()) == {"true"}, "and the session is as it was"
