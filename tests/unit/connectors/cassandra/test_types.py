"""Which Spark types a CQL type stores, and how types and values are read and written."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import types as t

from headrace.connectors.cassandra.types import CqlType, check_key_value, cql_type, fits, parse_type
from headrace.errors import ConfigError

TEXT, INT, DOUBLE = CqlType("text"), CqlType("int"), CqlType("double")
ADDRESS = {"address": (["street", "Zip"], ["text", "int"]), "Odd name": (["home"], ["frozen<address>"])}
PERSON = t.StructType([t.StructField("street", t.StringType()), t.StructField("Zip", t.IntegerType())])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("text", TEXT),
        ("list<int>", CqlType("list", (INT,))),
        ("frozen<list<int>>", CqlType("list", (INT,), frozen=True)),
        ("map<text, frozen<set<int>>>", CqlType("map", (TEXT, CqlType("set", (INT,), frozen=True)))),
        ("tuple<int, text>", CqlType("tuple", (INT, TEXT), frozen=True)),
        ("address", CqlType("address", (TEXT, INT), ("street", "Zip"))),
        ("frozen<address>", CqlType("address", (TEXT, INT), ("street", "Zip"), frozen=True)),
        (
            '"Odd name"',
            CqlType("Odd name", (CqlType("address", (TEXT, INT), ("street", "Zip"), frozen=True),), ("home",)),
        ),
    ],
)
def test_a_type_of_the_system_schema_is_parsed(text, kind):
    assert parse_type(text, ADDRESS) == kind


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (t.BooleanType(), "boolean"),
        (t.ByteType(), "tinyint"),
        (t.LongType(), "bigint"),
        (t.DecimalType(10, 2), "decimal"),
        (t.StringType(), "text"),
        (t.TimestampType(), "timestamp"),
        (t.DayTimeIntervalType(), "duration"),
        (t.ArrayType(t.IntegerType()), "frozen<list<int>>"),
        (t.MapType(t.StringType(), t.ArrayType(t.DoubleType())), "frozen<map<text, frozen<list<double>>>>"),
        (PERSON, "frozen<tuple<text, int>>"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.simpleString(),
)
def test_a_new_column_has_a_type_that_stores_its_values(kind, text):
    assert cql_type("column", kind) == text
    assert fits(kind, parse_type(text, {}))


@pytest.mark.parametrize("kind", [t.TimestampNTZType(), t.YearMonthIntervalType(), t.ArrayType(t.VariantType())])
def test_a_type_that_cassandra_does_not_have_is_refused_with_a_cast(kind):
    with pytest.raises(ConfigError, match="which Cassandra has no type for") as refused:
        cql_type("seen", kind)
    assert "CAST(seen AS STRING)" in refused.value.hint


@pytest.mark.parametrize(
    ("kind", "there", "stored"),
    [
        (t.IntegerType(), "int", True),
        (t.IntegerType(), "varint", True),
        (t.IntegerType(), "double", True),
        (t.IntegerType(), "float", False),  # it would round
        (t.LongType(), "double", False),
        (t.ShortType(), "float", True),
        (t.DoubleType(), "float", False),
        (t.FloatType(), "double", True),
        (t.StringType(), "uuid", True),
        (t.StringType(), "int", False),
        (t.DateType(), "timestamp", True),
        (t.TimestampType(), "date", False),
        (t.ArrayType(t.IntegerType()), "list<int>", False),  # each element is a cell of its own
        (t.ArrayType(t.IntegerType()), "frozen<list<int>>", True),
        (t.ArrayType(t.IntegerType()), "set<int>", True),
        (t.ArrayType(t.StringType()), "set<int>", False),
        (t.MapType(t.StringType(), t.IntegerType()), "map<text, int>", True),
        (t.MapType(t.StringType(), t.IntegerType()), "map<int, int>", False),
        (PERSON, "tuple<text, int>", True),
        (PERSON, "tuple<text>", False),
        (PERSON, "frozen<address>", True),
        (PERSON, "text", False),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, t.DataType) else str(value),
)
def test_a_column_stores_values_of_a_type_or_not(kind, there, stored):
    assert fits(kind, parse_type(there, ADDRESS)) is stored


SOME_UUID = uuid.UUID("8c1f3b4e-0000-4000-8000-000000000001")


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        ("text", None, None),
        ("text", "a", "a"),
        ("list<uuid>", [str(SOME_UUID)], [SOME_UUID]),
        ("double", 3, 3.0),
        ("tuple<text, int>", {"a": "x", "b": None}, ("x", None)),
        ("frozen<address>", {"Zip": 5, "street": "Main"}, ("Main", 5)),
        ("frozen<address>", {"street": "Main"}, ("Main", None)),
    ],
)
def test_a_value_is_converted_for_the_driver(kind, value, made):
    assert parse_type(kind, ADDRESS).to_driver(value) == made


def test_maps_and_durations_are_the_drivers_own():
    assert dict(parse_type("map<text, double>", {}).to_driver([("a", 1)])) == {"a": 1.0}
    duration = parse_type("duration", {}).to_driver(timedelta(days=1, seconds=2, microseconds=3))
    assert (duration.months, duration.days, duration.nanoseconds) == (0, 0, 86_402_000_003_000)


@pytest.mark.parametrize(("kind", "value"), [("list<int>", [1, None]), ("map<text, int>", [("a", None)])])
def test_null_in_a_collection_is_refused(kind, value):
    with pytest.raises(ValueError, match="NULL in a collection"):
        parse_type(kind, {}).to_driver(value)


def test_a_key_that_cassandra_would_round_is_refused():
    exact = datetime(2026, 1, 1, microsecond=5000, tzinfo=UTC)
    assert check_key_value(exact) is exact
    with pytest.raises(ValueError, match="microseconds"):
        check_key_value(exact.replace(microsecond=5001))
