"""JSON lines as Avro: the bytes of the specification, and what a schema does not allow."""

import json

import pytest

from headrace.errors import ConfigError
from headrace.formats.avro.json_encoding import encoder
from support.avro_bytes import encoded

CLICK = {
    "type": "record",
    "name": "Click",
    "namespace": "com.example",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["VIEW", "BUY"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "again", "type": "Kind", "default": "BUY"},
    ],
}


def write(schema, value):
    return encoder(json.dumps(schema))(json.dumps(value).encode())


def test_a_record_has_the_bytes_of_the_specification():
    value = {"id": -3, "user": "ann", "kind": "BUY", "tags": ["a", "ü"]}
    whole = {**CLICK, "fields": [*CLICK["fields"][:4], {"name": "again", "type": CLICK["fields"][2]["type"]}]}
    assert write(CLICK, value) == encoded(whole, {**value, "again": "BUY"})
    assert write(CLICK, {"id": 1 << 40, "kind": "VIEW", "tags": []}) == encoded(
        whole, {"id": 1 << 40, "user": None, "kind": "VIEW", "tags": [], "again": "BUY"}
    )


@pytest.mark.parametrize(
    ("schema", "value", "raw"),
    [
        ("int", 64, b"\x80\x01"),
        ("boolean", True, b"\x01"),
        ("double", 1, b"\0\0\0\0\0\0\xf0?"),
        ("bytes", "\u00ff\u0000", b"\x04\xff\x00"),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", b"ab"),
        ({"type": "map", "values": "int"}, {"a": 1}, b"\x02\x02a\x02\x00"),
        ({"type": "int", "logicalType": "date"}, "1970-01-03", b"\x04"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "1970-01-01T00:00:00.001Z", b"\x02"),
        ({"type": "long", "logicalType": "timestamp-micros"}, 5, b"\x0a"),
        (["null", "int", "string"], "x", b"\x04\x02x"),
    ],
)
def test_each_type_has_its_bytes(schema, value, raw):
    assert write(schema, value) == raw


def test_a_record_may_hold_itself():
    tree = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"], "default": None}]}
    assert write(tree, {"next": {"next": {}}}) == b"\x02\x02\x00"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "BUY", "tags": []}, "the field id is missing"),
        ({"id": "1", "kind": "BUY", "tags": []}, 'id: expected long, got "1"'),
        ({"id": 1, "kind": "SELL", "tags": []}, "kind: expected one of VIEW, BUY"),
        ({"id": 1, "kind": "BUY", "tags": [], "more": 1}, "the schema has no field more"),
        ({"id": 1 << 63, "kind": "BUY", "tags": []}, "does not fit long"),
        ([1], "expected an object"),
    ],
)
def test_what_the_schema_does_not_allow_is_reported_with_its_field(value, message):
    with pytest.raises(ValueError) as refused:
        write(CLICK, value)
    assert message in str(refused.value)


def test_a_name_that_is_not_defined_is_refused():
    with pytest.raises(ConfigError, match="uses the type Kind before its definition"):
        encoder('{"type": "array", "items": "Kind"}')
