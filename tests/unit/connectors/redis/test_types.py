"""Values as texts and JSON of Redis, and the keys of rows."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from headrace.connectors.redis.types import as_fields, as_json, as_text, converters, key_of
from headrace.errors import ConfigError

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
POINT = t.StructType([t.StructField("x", t.DoubleType()), t.StructField("at", t.TimestampType())])


@pytest.mark.parametrize(
    ("kind", "value", "plain", "text"),
    [
        (t.StringType(), "ä", "ä", "ä"),
        (t.BooleanType(), True, True, "true"),
        (t.LongType(), 2**60, 2**60, str(2**60)),
        (t.DoubleType(), 0.5, 0.5, "0.5"),
        (t.DoubleType(), math.nan, "NaN", "NaN"),
        (t.DoubleType(), -math.inf, "-Infinity", "-Infinity"),
        (t.DecimalType(9, 3), Decimal("1.500"), "1.500", "1.500"),
        (t.BinaryType(), b"\x01\x02", "AQI=", b"\x01\x02"),
        (t.DateType(), date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (t.TimestampType(), NOON, "2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
        (t.TimestampNTZType(), NOON.replace(tzinfo=None), "2026-01-01T12:00:00", "2026-01-01T12:00:00"),
        (t.ArrayType(t.LongType()), [1, None], [1, None], "[1,null]"),
        (t.MapType(t.LongType(), t.StringType()), [(1, "a")], {"1": "a"}, '{"1":"a"}'),
        (POINT, {"x": None, "at": NOON}, {"x": None, "at": "2026-01-01T10:00:00Z"}, None),
    ],
    ids=repr,
)
def test_a_value_as_json_and_as_text(kind, value, plain, text):
    convert = converters({"column": kind})["column"]
    assert convert(value) == plain
    if text is not None:
        assert as_text(value, convert) == text


def test_a_row_as_json_has_null_and_as_fields_leaves_it_out():
    plain = converters({"n": t.LongType(), "name": t.StringType()})
    row = {"n": None, "name": "Zoë"}
    assert as_json(row, plain) == '{"n":null,"name":"Zoë"}'
    assert as_fields(row, plain) == ["name", "Zoë"]


@pytest.mark.parametrize("kind", [t.VariantType(), t.DayTimeIntervalType(), t.ArrayType(t.VariantType())])
def test_a_type_that_redis_has_no_place_for_is_refused(kind):
    with pytest.raises(ConfigError, match=r"odd is .*which Redis cannot store"):
        converters({"odd": kind})


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (("a",), "users:a"),
        ((7,), "users:7"),
        (("a:b", "c"), "users:a%3Ab:c"),
        (("100%", "{x}"), "users:100%25:%7Bx%7D"),
    ],
)
def test_the_key_of_a_row_escapes_what_has_a_meaning_in_keys(parts, key):
    assert key_of("users", parts, tuple(lambda value: value for _ in parts)) == key


texts = st.tuples(*[st.text(alphabet="a:%{}3A", max_size=5)] * 2)


@given(texts, texts)
def test_no_two_rows_share_a_key(one, other):
    same = (lambda value: value,) * 2
    assert (key_of("users", one, same) == key_of("users", other, same)) == (one == other)


def test_times_of_two_zones_are_one_text():
    convert = converters({"at": t.TimestampType()})["at"]
    assert convert(NOON) == convert(NOON.astimezone(UTC))
