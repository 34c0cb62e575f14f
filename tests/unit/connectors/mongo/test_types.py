"""Values as BSON, names that MongoDB does not take, keys and references."""

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest
from bson import DBRef, Decimal128, Int64
from pyspark.sql import types as t

from headrace.connectors.mongo.types import (
    check_names,
    check_references,
    document_encoder,
    encode_value,
    key_part,
    reference,
)
from headrace.connectors.shared.document_encoder import UnsupportedValue
from headrace.errors import ConfigError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AUTHOR = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])


def struct(**columns):
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        (t.IntegerType(), 7, 7),
        (t.LongType(), 7, Int64(7)),
        (t.StringType(), "a", "a"),
        (t.BinaryType(), b"a", b"a"),
        (t.DecimalType(10, 2), Decimal("1.50"), Decimal128("1.50")),
        (t.DateType(), date(2026, 1, 1), NOON.replace(hour=0)),
        (t.TimestampType(), NOON, NOON),
        (t.ArrayType(t.LongType()), [1, None], [Int64(1), None]),
        (t.MapType(t.StringType(), t.LongType()), [("a", 1)], {"a": Int64(1)}),
        (t.MapType(t.LongType(), t.StringType()), [(1, "a")], [{"key": Int64(1), "value": "a"}]),
    ],
    ids=repr,
)
def test_a_value_as_bson(kind, value, made):
    result = document_encoder().encoder_for(kind, "omit")(value)
    assert result == made
    assert type(result) is type(made)


@pytest.mark.parametrize(("nulls", "made"), [("omit", {"id": 1}), ("keep", {"id": 1, "name": None})])
def test_a_field_that_is_null_is_left_out_or_kept(nulls, made):
    assert document_encoder().encoder_for(AUTHOR, nulls)({"id": 1, "name": None}) == made


def test_a_time_of_day_is_a_text():
    assert document_encoder().leaves["time"](time(12, 30)) == "12:30:00"


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        (struct(price=t.DecimalType(38, 0)), {"price": Decimal("1" * 38)}, "price: .*more than the 34 digits"),
        (struct(inner=struct(n=t.DecimalType(38, 0))), {"inner": {"n": Decimal("1" * 38)}}, "inner: n: "),
    ],
)
def test_a_value_that_bson_cannot_hold_is_named_by_its_field(column, value, reason):
    with pytest.raises(UnsupportedValue, match=reason):
        document_encoder().encoder_for(column, "omit")(value)


@pytest.mark.parametrize(
    ("document", "reason"), [({"n": 2**70}, "8-byte ints"), ({"text": "x" * 17_000_000}, "17,000,0.. bytes")]
)
def test_a_document_that_cannot_be_sent_is_refused(document, reason):
    with pytest.raises(UnsupportedValue, match=reason):
        encode_value(document)


@pytest.mark.parametrize("value", [1, "a", 1.5, NOON.replace(microsecond=3000)])
def test_a_value_that_mongodb_keeps_exactly_may_be_in_a_key(value):
    assert key_part(value, "id") is value


@pytest.mark.parametrize(("value", "reason"), [(NOON.replace(microsecond=3001), "milliseconds"), (math.nan, "NaN")])
def test_a_value_that_another_would_replace_may_not_be_in_a_key(value, reason):
    with pytest.raises(UnsupportedValue, match=reason):
        key_part(value, "id")


@pytest.mark.parametrize(
    ("schema", "key", "fits"),
    [
        (struct(user=t.LongType()), ("user",), True),
        (struct(_id=t.LongType()), ("_id",), True),
        (struct(_id=t.LongType()), ("user",), False),
        (struct(_headrace=t.LongType()), (), False),
        (struct(**{"$set": t.LongType()}), (), False),
        (struct(**{"a.b": t.LongType()}), (), False),
        (struct(**{"": t.LongType()}), (), False),
        (struct(inner=struct(**{"a.b": t.LongType()})), (), False),
        (struct(many=t.ArrayType(struct(**{"$x": t.LongType()}))), (), False),
        (struct(inner=struct(_id=t.LongType())), (), True),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, t.DataType) else None,
)
def test_names_that_mongodb_takes_for_something_else_are_refused(schema, key, fits):
    if fits:
        check_names(schema, key, "sink")
    else:
        with pytest.raises(ConfigError, match=r"reserved by Headrace|does not support the field name"):
            check_names(schema, key, "sink")


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        (t.LongType(), 7, DBRef("authors", Int64(7))),
        (struct(id=t.LongType()), {"id": 7}, DBRef("authors", Int64(7))),
        (AUTHOR, {"id": 7, "name": "Ann"}, DBRef("authors", {"id": Int64(7), "name": "Ann"})),
    ],
)
def test_a_reference_has_the_id_that_a_key_would_have(kind, value, made):
    assert reference(kind, "authors", "omit")(value) == made


def test_a_reference_without_a_part_of_the_id_is_refused():
    with pytest.raises(UnsupportedValue, match="name is NULL"):
        reference(AUTHOR, "authors", "omit")({"id": 7, "name": None})


@pytest.mark.parametrize("kind", [t.ArrayType(t.LongType()), t.MapType(t.StringType(), t.LongType()), t.VariantType()])
def test_a_column_that_is_not_one_value_cannot_be_a_reference(kind):
    check_references(struct(author=AUTHOR, editor=t.LongType()), {"author": "authors", "editor": "authors"}, "sink")
    with pytest.raises(ConfigError, match="expected author"):
        check_references(struct(author=kind), {"author": "authors"}, "sink")
    with pytest.raises(ConfigError, match="it is not there"):
        check_references(struct(), {"author": "authors"}, "sink")
