"""Values as the bytes of a cell, and row keys."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from headrace.connectors.hbase.types import cell, check, row_key
from headrace.errors import ConfigError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POINT = t.StructType([t.StructField("x", t.DoubleType()), t.StructField("raw", t.BinaryType())])


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (t.StringType(), "Zürich", "Zürich".encode()),
        (t.BinaryType(), b"\x00\xff", b"\x00\xff"),
        (t.BooleanType(), True, b"true"),
        (t.LongType(), -7, b"-7"),
        (t.DoubleType(), 0.1, b"0.1"),
        (t.DoubleType(), math.inf, b"Infinity"),
        (t.DoubleType(), -math.inf, b"-Infinity"),
        (t.DoubleType(), math.nan, b"NaN"),
        (t.DecimalType(20, 10), Decimal("1E-10"), b"0.0000000001"),
        (t.DateType(), date(2026, 1, 2), b"2026-01-02"),
        (t.TimestampType(), NOON, b"2026-01-01T12:00:00Z"),
        (t.TimestampType(), NOON.astimezone(timezone(timedelta(hours=1))), b"2026-01-01T12:00:00Z"),
        (t.TimestampNTZType(), NOON.replace(tzinfo=None), b"2026-01-01T12:00:00"),
        (t.ArrayType(t.LongType()), [], b"[]"),
        (t.MapType(t.StringType(), t.LongType()), [], b"{}"),
        (t.MapType(t.LongType(), t.StringType()), [(1, "ä")], '{"1":"ä"}'.encode()),
        (POINT, {"x": math.nan, "raw": b"\x01"}, b'{"x":"NaN","raw":"AQ=="}'),
        (t.ArrayType(POINT), [None, {"x": 1.5, "raw": None}], b'[null,{"x":1.5,"raw":null}]'),
    ],
    ids=repr,
)
def test_a_value_as_the_bytes_of_a_cell(kind, value, stored):
    assert cell(kind, value) == stored


@pytest.mark.parametrize(
    ("values", "key"),
    [(("a",), b"a"), (("a", 7), b"a|7"), (("a|b", "c"), b"a\\|b|c"), (("a\\", "b"), b"a\\\\|b"), (("", ""), b"|")],
)
def test_a_row_key_of_several_columns(values, key):
    kinds = [t.StringType() if isinstance(value, str) else t.LongType() for value in values]
    assert row_key(kinds, values) == key


texts = st.lists(st.text(alphabet="a|\\", max_size=4), min_size=2, max_size=2)


@given(texts, texts)
def test_no_two_rows_share_a_row_key(one, other):
    kinds = [t.StringType(), t.StringType()]
    assert (row_key(kinds, one) == row_key(kinds, other)) == (one == other)


@pytest.mark.parametrize("kind", [t.VariantType(), t.DayTimeIntervalType(), t.ArrayType(t.NullType())])
def test_a_type_without_bytes_is_refused_with_its_column(kind):
    check(t.StructType([t.StructField("fine", POINT), t.StructField("also", t.MapType(t.StringType(), t.DateType()))]))
    with pytest.raises(ConfigError, match=r"^odd is ") as refused:
        check(t.StructType([t.StructField("odd", kind)]))
    assert "CAST(odd AS STRING)" in refused.value.hint
