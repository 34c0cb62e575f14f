"""Values as attributes of DynamoDB, and the columns that may be keys."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from pyspark.sql import types as t

from headrace.connectors.dynamodb.types import attribute, document_encoder
from headrace.connectors.shared.document_encoder import UnsupportedValue
from headrace.errors import ConfigError

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
POINT = t.StructType([t.StructField("x", t.DoubleType()), t.StructField("tags", t.ArrayType(t.StringType()))])


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        (t.LongType(), 2**60, {"N": str(2**60)}),
        (t.DecimalType(10, 2), Decimal("1.50"), {"N": "1.50"}),
        (t.DoubleType(), 0.1, {"N": "0.1"}),
        (t.BooleanType(), False, {"BOOL": False}),
        (t.StringType(), "", {"S": ""}),
        (t.BinaryType(), b"\x00", {"B": b"\x00"}),
        (t.DateType(), date(2026, 1, 2), {"S": "2026-01-02"}),
        (t.TimestampType(), NOON, {"S": "2026-01-01T10:00:00.000000Z"}),
        (t.TimestampNTZType(), NOON.replace(tzinfo=None), {"S": "2026-01-01T12:00:00.000000"}),
        (t.ArrayType(t.LongType()), [1, None], {"L": [{"N": "1"}, {"NULL": True}]}),
        (t.MapType(t.StringType(), t.LongType()), [("a", 1)], {"M": {"a": {"N": "1"}}}),
        (POINT, {"x": 1.5, "tags": None}, {"M": {"x": {"N": "1.5"}}}),
    ],
    ids=repr,
)
def test_a_value_as_an_attribute(kind, value, made):
    assert document_encoder().encoder_for(kind, "omit")(value) == made


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (True, {"BOOL": True}),
        (1, {"N": "1"}),
        (Decimal("0.1"), {"N": "0.1"}),
        (1.5, {"N": "1.5"}),
        ("a", {"S": "a"}),
        (b"a", {"B": b"a"}),
        (NOON, {"S": "2026-01-01T10:00:00.000000Z"}),
        (date(2026, 1, 2), {"S": "2026-01-02"}),
        (time(1, 2), {"S": "01:02:00"}),
    ],
)
def test_a_value_of_a_variant_has_its_own_type(value, made):
    assert document_encoder().variant(value) == made


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_dynamodb_does_not_have_is_refused_with_its_field(value):
    with pytest.raises(UnsupportedValue, match=f"x: DynamoDB has no {value}"):
        document_encoder().encoder_for(POINT, "omit")({"x": value, "tags": None})


def test_times_of_all_zones_sort_as_texts_as_they_do_as_times():
    make = document_encoder().encoder_for(t.TimestampType(), "omit")
    times = [NOON, NOON.astimezone(UTC) + timedelta(microseconds=1), NOON + timedelta(minutes=1)]
    assert sorted(make(each)["S"] for each in times) == [make(each)["S"] for each in times]


@pytest.mark.parametrize(
    ("kind", "letter"),
    [
        (t.StringType(), "S"),
        (t.TimestampType(), "S"),
        (t.LongType(), "N"),
        (t.DoubleType(), "N"),
        (t.BinaryType(), "B"),
        (t.BooleanType(), None),
        (t.ArrayType(t.LongType()), None),
    ],
)
def test_a_key_is_a_text_a_number_or_binary(kind, letter):
    schema = t.StructType([t.StructField("id", kind)])
    if letter is None:
        with pytest.raises(ConfigError, match="id, which is in a key, is"):
            attribute(schema, "id", "sink")
    else:
        assert attribute(schema, "id", "sink") == {"AttributeName": "id", "AttributeType": letter}


def test_a_key_that_the_rows_do_not_have_is_refused_with_those_they_have():
    with pytest.raises(ConfigError, match="no column id") as refused:
        attribute(POINT, "id", "sink")
    assert "['x', 'tags']" in refused.value.hint
