"""The types of columns in PostgreSQL, for a new table and in one that is there."""

import pytest
from pyspark.sql import types as t

from headrace.connectors.postgres.types import column_type, fits
from headrace.errors import ConfigError


def field(kind):
    return t.StructField("seen", kind)


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (t.BooleanType(), "boolean"),
        (t.ByteType(), "smallint"),
        (t.IntegerType(), "integer"),
        (t.LongType(), "bigint"),
        (t.FloatType(), "real"),
        (t.DoubleType(), "double precision"),
        (t.DecimalType(10, 2), "numeric(10,2)"),
        (t.StringType(), "text"),
        (t.BinaryType(), "bytea"),
        (t.TimestampType(), "timestamptz"),
        (t.TimestampNTZType(), "timestamp"),
        (t.DayTimeIntervalType(), "interval"),
        (t.ArrayType(t.LongType()), "jsonb"),
        (t.MapType(t.StringType(), t.LongType()), "jsonb"),
        (t.StructType(), "jsonb"),
        (t.VariantType(), "jsonb"),
        (t.NullType(), "text"),
    ],
    ids=repr,
)
def test_the_type_of_a_new_column(kind, type_):
    assert column_type(field(kind)) == type_


@pytest.mark.parametrize(
    ("kind", "there", "stored"),
    [
        (t.IntegerType(), "int2", True),  # the server refuses a value that is too large
        (t.LongType(), "oid", True),
        (t.LongType(), "text", False),
        (t.DoubleType(), "int8", False),
        (t.DoubleType(), "numeric", True),
        (t.DecimalType(5, 2), "money", True),
        (t.StringType(), "text", True),
        (t.StringType(), "varchar", True),
        (t.StringType(), "uuid", True),
        (t.StringType(), "inet", True),
        (t.StringType(), "jsonb", True),
        (t.StringType(), "int4", False),
        (t.StringType(), "timestamptz", False),
        (t.StringType(), "bool", False),
        (t.TimestampType(), "date", False),
        (t.TimestampNTZType(), "timestamptz", False),
        (t.DateType(), "timestamptz", True),
        (t.ArrayType(t.LongType()), "json", True),
        (t.ArrayType(t.LongType()), "_int8", False),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, t.DataType) else str(value),
)
def test_a_column_that_is_there_takes_values_of_a_type_or_not(kind, there, stored):
    assert fits(field(kind), there) is stored


def test_a_type_that_postgresql_does_not_have_is_refused_with_a_cast():
    with pytest.raises(ConfigError, match="which PostgreSQL has no type for") as refused:
        column_type(field(t.CalendarIntervalType()))
    assert "CAST(seen AS STRING)" in refused.value.hint
