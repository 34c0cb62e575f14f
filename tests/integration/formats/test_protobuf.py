"""Protobuf on real Spark: every kind of field, evolution, what is bad, a registry's wire format, and the way back."""

import datetime
import struct
import uuid
from decimal import Decimal

import pytest
from google.protobuf import descriptor_pb2

import headrace as hr
from headrace import sinks
from headrace.engine.decoder import Decoder
from headrace.engine.field_decoder import RAW_SCHEMA
from headrace.errors import BadRecord, ConfigError
from headrace.formats.protobuf.types import Messages
from headrace.testing.committed_records import read_committed
from support.avro_bytes import registered
from support.protobuf_descriptors import FIELD, add, described

SHOP = described()
FULL = {
    "id": -5,
    "name": "naïve ✓",
    "large": Decimal(2**64 - 1),
    "ratio": 0.5,
    "raw": b"\x00\xff",
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 123456),
    "note": "",
    "kind": "GIFT",
    "line": {"sku": "a", "count": 2**40},
    "tags": ["x", "y"],
    "lines": [{"sku": "b", "count": 1}],
    "counts": {"c": 3},
    "seen": False,
}
EMPTY = {"id": 0, "name": "", "large": Decimal(0), "ratio": 0.0, "raw": b"", "kind": "NONE"} | {
    "tags": [],
    "lines": [],
    "counts": {},
    **dict.fromkeys(("at", "note", "line", "seen")),
}


def message(descriptor=SHOP, **fields):
    made = Messages("shop.Order", descriptor).message_class(**fields)
    return made.SerializeToString()


def full():
    at = {"seconds": int(FULL["at"].replace(tzinfo=datetime.UTC).timestamp()), "nanos": 123_456_789}
    plain = {name: FULL[name] for name in ("id", "name", "ratio", "raw", "tags", "counts", "seen", "line", "lines")}
    return message(**plain, large=2**64 - 1, at=at, note={"value": ""}, kind=1)


def decoded(spark, fmt, values):
    rows = [(None, value, "orders", 0, offset, None, 0, None) for offset, value in enumerate(values)]
    found = Decoder(spark, fmt).decode(spark.createDataFrame(rows, RAW_SCHEMA)).rows
    return [row.asDict(recursive=True) for row in found.drop("_kafka").collect()]


def test_every_kind_of_field_is_a_column_and_absent_fields_are_null_if_presence_is_tracked(spark, tmp_path):
    (tmp_path / "shop.desc").write_bytes(SHOP)
    fmt = hr.Protobuf("shop.Order", descriptor=tmp_path / "shop.desc")
    assert decoded(spark, fmt, [full(), b"", None]) == [FULL, EMPTY, dict.fromkeys(FULL)]


def test_records_of_an_older_and_a_newer_message_are_read_by_the_descriptor_that_is_given(spark):
    newer = described({"id": ("INT32", 1), "email": ("STRING", 14)})
    values = [message(id=1, name="old"), message(newer, id=2, email="new@example.com")]
    assert [row["name"] for row in decoded(spark, hr.Protobuf("shop.Order", descriptor=SHOP), values)] == ["old", ""]
    found = decoded(spark, hr.Protobuf("shop.Order", descriptor=newer), values)
    assert found == [{"id": 1, "email": ""}, {"id": 2, "email": "new@example.com"}]


def test_what_is_no_such_message_is_bad_with_its_bytes(spark):
    other = described({"id": ("STRING", 1)})
    bad = [b"\xff", full()[:-3], message(other, id="text"), b"\x12\x01\xff", message(at={"seconds": 10**15})]
    found = decoded(spark, hr.Protobuf("shop.Order", descriptor=SHOP, on_error="keep"), [message(id=1), *bad])
    assert [row["bad"] is None for row in found] == [True, *(False for _ in bad)]
    assert [bytes(row["bad"]["value"]) for row in found[1:]] == bad
    assert found[3]["bad"]["error"] == "not a valid shop.Order message: the field id is of another type"


def test_records_go_through_a_registry_and_come_back_equal(spark, topic, schema_registry, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    source, target = topic(partitions=1), topic(partitions=1)
    proto = 'syntax = "proto3"; message Line { string sku = 1; } message Order { int32 id = 1; }'
    number = registered(schema_registry.url, f"{target.name}-value", proto, schemaType="PROTOBUF")
    source.produce([full(), message(), None])
    fmt = hr.Protobuf("shop.Order", descriptor=SHOP, registry=schema_registry.url)
    hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:12]}",
        source=hr.Kafka(source.bootstrap, topics=[source.name], format=hr.Protobuf("shop.Order", descriptor=SHOP)),
        sink=sinks.Kafka(source.bootstrap, target.name, format=fmt),
        guarantee="exactly-once",
    ).run(until="caught-up", session=spark, fail_fast=True)
    values = [record.value() for record in read_committed(target.bootstrap, target.name)]
    assert values[0][:7] == struct.pack(">bI", 0, number) + b"\x02\x02", "the second message of its file"
    assert values[2] is None
    assert decoded(spark, fmt, values) == [FULL, EMPTY, dict.fromkeys(FULL)]
    bad = decoded(
        spark,
        hr.Protobuf("shop.Order", descriptor=SHOP, registry="http://x:1", on_error="keep"),
        [
            full(),
            values[0][:5] + b"\x00" + full(),
        ],
    )
    assert [row["bad"]["error"].partition(": ")[2] for row in bad] == [
        "not in the wire format of a schema registry",
        "it is another message of its schema",
    ]


@pytest.mark.parametrize(
    ("name", "descriptor", "said"),
    [
        ("shop.Loop", SHOP, "contains itself"),
        ("shop.Ordr", SHOP, "no message shop.Ordr"),
        ("shop.Order", b"\xff", "cannot use the descriptor"),
    ],
    ids=["endless", "unknown", "broken"],
)
def test_a_descriptor_that_cannot_work_is_refused_before_anything_is_read(spark, name, descriptor, said):
    with pytest.raises(ConfigError, match=said):
        Decoder(spark, hr.Protobuf(name, descriptor=descriptor))


def test_columns_that_the_message_does_not_have_are_refused(spark):
    fmt = hr.Protobuf("shop.Order", descriptor=SHOP)
    with pytest.raises(ConfigError, match="has no field colour"):
        fmt.encode_expr({"colour": "string"}, "t")
    with pytest.raises(ConfigError, match="id does not match") as refused:
        fmt.encode_expr({"id": "long"}, "t")
    assert refused.value.hint == "CAST(id AS INT) in the transform"


def closed(*kinds):
    """A file of proto2, where an enum has no other numbers than its own, and fields may be required."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(kinds):
        kind.value.add(name=name, number=number)
    line, order = file.message_type.add(name="Line"), file.message_type.add(name="Order")
    entry = order.nested_type.add(name="LargeEntry")
    entry.options.map_entry = True
    add(entry, {"key": ("UINT64", 1), "value": ("STRING", 2)})
    add(line, {"count": ("INT32", 1)})
    add(order, {"id": ("INT32", 1), "u": ("UINT32", 4), "tags": ("STRING*", 5), "line": (".old.Line", 6)})
    order.field[0].label = FIELD.LABEL_REQUIRED
    add(order, {"large": (".old.Order.LargeEntry*", 7)})
    for message, name, number, label in ((order, "kind", 2, 1), (order, "kinds", 3, 3), (line, "kind", 2, 1)):
        message.field.add(name=name, number=number, label=label, type=FIELD.TYPE_ENUM, type_name=".old.Kind")
    order.field[-2].default_value = kinds[1]
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


OLD = closed("NONE", "GIFT")


def test_a_number_that_an_enum_has_no_name_for_is_that_number_at_any_depth_and_place(spark):
    newer = Messages("old.Order", closed("NONE", "GIFT", "LOAN")).message_class
    value = newer(id=1, kind=2, kinds=[0, 2, 1], line={"count": 3, "kind": 2}).SerializeToString()
    (row,) = decoded(spark, hr.Protobuf("old.Order", descriptor=OLD), [value])
    assert (row["kind"], row["kinds"], row["line"]) == ("2", ["NONE", "2", "GIFT"], {"count": 3, "kind": "2"})
    fmt = hr.Protobuf("old.Order", descriptor=OLD)
    rows = spark.sql("SELECT 1 AS id, '2' AS kind, array('NONE', '2', 'GIFT') AS kinds")
    assert encoded(rows, fmt) == [newer(id=1, kind=2, kinds=[0, 2, 1]).SerializeToString()]


def test_a_field_of_another_type_is_bad_at_any_depth(spark):
    inner = b"\x08\x01\x32\x04\x0a\x02hi"  # line.count as a text
    (row,) = decoded(spark, hr.Protobuf("old.Order", descriptor=OLD, on_error="keep"), [inner])
    assert row["bad"]["error"] == "not a valid old.Order message: the field count is of another type"


def encoded(rows, fmt):
    columns = {field["name"]: field["type"] for field in rows.schema.jsonValue()["fields"]}
    return [bytes(row["value"]) for row in rows.selectExpr(f"{fmt.encode_expr(columns, 't')} AS value").collect()]


def test_large_numbers_are_keys_of_a_map_there_and_back(spark):
    fmt = hr.Protobuf("old.Order", descriptor=OLD)
    values = encoded(spark.sql("SELECT 1 AS id, map(CAST(18446744073709551615 AS DECIMAL(20,0)), 'x') AS large"), fmt)
    assert decoded(spark, fmt, values)[0]["large"] == {Decimal(2**64 - 1): "x"}


def copied(topic, spark, values, select=None):
    source, target = topic(partitions=1), topic(partitions=1)
    source.produce(values)
    fmt = hr.Protobuf("old.Order", descriptor=OLD)
    hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:12]}",
        source=hr.Kafka(source.bootstrap, topics=[source.name], format=fmt),
        transform=lambda rows: rows.selectExpr(*select, "_kafka") if select else rows,
        sink=sinks.Kafka(source.bootstrap, target.name, format=fmt),
        guarantee="exactly-once",
    ).run(until="caught-up", session=spark, fail_fast=True)
    return [record.value() for record in read_committed(target.bootstrap, target.name)]


def test_a_record_without_a_value_stays_one_though_a_field_is_required(spark, topic, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    assert copied(topic, spark, [b"\x08\x01", None]) == [b"\x08\x01", None]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("'LOAN' AS kind", "kind has no value 'LOAN'"),
        ("-1L AS u", "cannot encode the row as old.Order: .*range"),
        ("array('a', NULL) AS tags", "tags contains a NULL"),
        ("if(id = 1, NULL, id) AS id", "required"),
    ],
    ids=["enum", "unsigned", "list", "required"],
)
def test_a_row_that_is_no_message_is_a_bad_record_and_not_repeated(spark, topic, tmp_path, monkeypatch, column, said):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    columns = ["id", column] if "AS id" not in column else [column]
    with pytest.raises(BadRecord, match=said):
        copied(topic, spark, [b"\x08\x01"], columns)
