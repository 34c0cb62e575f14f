"""Protobuf messages as Spark types, without Spark."""

import pickle

import pytest
from pyspark.sql import types as t

from headrace.errors import ConfigError
from headrace.formats.protobuf.types import Messages
from support.protobuf_descriptors import described


def messages(fields=None, name="shop.Order"):
    return Messages(name, described(fields))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("DOUBLE", "double"),
        ("FLOAT", "float"),
        ("BOOL", "boolean"),
        ("STRING", "string"),
        ("BYTES", "binary"),
        ("INT32", "int"),
        ("SINT32", "int"),
        ("SFIXED32", "int"),
        ("INT64", "bigint"),
        ("SINT64", "bigint"),
        ("SFIXED64", "bigint"),
        ("UINT32", "bigint"),  # an int would not hold all of its values
        ("FIXED32", "bigint"),
        ("UINT64", "decimal(20,0)"),
        ("FIXED64", "decimal(20,0)"),
        ("STRING*", "array<string>"),
        ("BOOL?", "boolean"),
        (".shop.Kind", "string"),
        (".shop.Line", "struct<sku:string,count:bigint>"),
        (".shop.Line*", "array<struct<sku:string,count:bigint>>"),
        (".shop.Order.CountsEntry*", "map<string,int>"),
        (".google.protobuf.Timestamp", "timestamp"),
        (".google.protobuf.StringValue", "string"),
        (".google.protobuf.UInt64Value", "decimal(20,0)"),
    ],
)
def test_each_kind_of_field_has_a_column_type(kind, column):
    (field,) = messages({"field": (kind, 1)}).row().fields
    assert field.dataType.simpleString() == column


def test_a_message_that_contains_itself_is_refused():
    with pytest.raises(ConfigError, match=r"shop\.Loop contains itself"):
        messages(name="shop.Loop").row()


@pytest.mark.parametrize(
    ("name", "index"), [("shop.Line", "00"), ("shop.Order", "0202"), ("shop.Order.CountsEntry", "040200")]
)
def test_the_index_of_a_message_is_its_path_in_the_file(name, index):
    assert messages(name=name).message_index().hex() == index


def json(kind):
    return kind.jsonValue()


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"id": json(t.IntegerType())},
        {"tags": json(t.ArrayType(t.StringType(), containsNull=False))},
        {
            "line": json(
                t.StructType([t.StructField("sku", t.StringType(), False), t.StructField("count", t.LongType())])
            )
        },
        {"counts": json(t.MapType(t.StringType(), t.IntegerType(), valueContainsNull=False))},
    ],
)
def test_columns_match_fields_whatever_may_be_null(columns):
    messages().check_columns(columns)


@pytest.mark.parametrize(
    ("columns", "message", "hint"),
    [
        ({"email": json(t.StringType())}, "shop.Order has no field email", "it has: id, name"),
        ({"id": json(t.StringType())}, "the column id does not match", "CAST(id AS INT)"),
        ({"tags": json(t.StringType())}, "the column tags does not match", "CAST(tags AS ARRAY<STRING>)"),
        (
            {"line": json(t.StructType([t.StructField("sku", t.StringType())]))},
            "the column line does not match",
            "STRUCT<SKU: STRING, COUNT: BIGINT>",
        ),
    ],
)
def test_columns_that_cannot_be_encoded_are_refused(columns, message, hint):
    with pytest.raises(ConfigError) as refused:
        messages().check_columns(columns)
    assert message in refused.value.message
    assert hint.replace(" ", "") in refused.value.hint.replace(" ", "")


def test_messages_are_sent_to_executors_as_bytes():
    copied = pickle.loads(pickle.dumps(messages()))
    assert copied.name == "shop.Order"
    assert copied.row() == messages().row()


@pytest.mark.parametrize(
    ("name", "descriptor", "message"),
    [("shop.Order", b"\xff", "cannot use the descriptor"), ("shop.Oder", described(), "has no message shop.Oder")],
)
def test_a_descriptor_without_the_message_is_refused(name, descriptor, message):
    with pytest.raises(ConfigError, match=message):
        Messages(name, descriptor)
