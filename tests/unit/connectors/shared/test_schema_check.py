"""Rows against the schema of a table: what is added, what is refused, and in which words."""

import pytest
from pyspark.sql import types as t

from headrace.connectors.shared.schema_check import missing_columns, nullable_schema, refuse_types
from headrace.errors import ConfigError


def schema(**columns):
    """A schema; a name that ends with `_required` is NOT NULL."""
    return t.StructType(
        [
            t.StructField(name.removesuffix("_required"), kind, not name.endswith("_required"))
            for name, kind in columns.items()
        ]
    )


TEXT, LONG, INT = t.StringType(), t.LongType(), t.IntegerType()


@pytest.mark.parametrize(
    ("rows", "table", "added"),
    [
        (schema(a=TEXT), schema(a=TEXT), []),
        (schema(a_required=TEXT), schema(a=TEXT), []),
        (schema(a=TEXT), schema(a_required=TEXT), []),  # the table decides when rows are written
        (schema(a=TEXT, b=LONG), schema(a=TEXT), ["b"]),
        (schema(a=TEXT), schema(a=TEXT, b=LONG), []),
        (schema(b=LONG, a=TEXT), schema(a=TEXT, b=LONG), []),
        (schema(a=t.ArrayType(TEXT, False)), schema(a=t.ArrayType(TEXT, True)), []),
        (schema(a=schema(x_required=INT)), schema(a=schema(x=INT)), []),
        (schema(a=t.MapType(TEXT, LONG, False)), schema(a=t.MapType(TEXT, LONG, True)), []),
    ],
)
def test_columns_that_the_table_lacks_are_returned(rows, table, added):
    assert missing_columns(rows, table, "clicks").names == added


@pytest.mark.parametrize(
    ("rows", "table", "reason"),
    [
        (schema(a=TEXT), schema(a=LONG), "see a"),
        (schema(a=TEXT), schema(a=TEXT, b_required=LONG), "see b"),
        (schema(a=TEXT, b=INT), schema(a=LONG, b=LONG), "see a, b"),
        (schema(a=schema(x=INT)), schema(a=schema(x=LONG)), "see a"),
        (schema(a=t.ArrayType(INT)), schema(a=t.ArrayType(LONG)), "see a"),
    ],
)
def test_a_mismatch_names_the_columns_and_shows_both_schemas(rows, table, reason):
    with pytest.raises(ConfigError) as refused:
        missing_columns(rows, table, "clicks")
    assert refused.value.message.startswith(f"the rows do not fit clicks: {reason}; rows: a ")
    assert "; table: a " in refused.value.message


def test_required_columns_are_shown_as_not_null():
    with pytest.raises(ConfigError, match=r"table: a string, b bigint NOT NULL$"):
        missing_columns(schema(a=TEXT), schema(a=TEXT, b_required=LONG), "clicks")


def test_a_reason_of_the_caller_refuses_rows_that_would_fit():
    with pytest.raises(ConfigError, match="it is partitioned"):
        missing_columns(schema(a=TEXT), schema(a=TEXT), "clicks", "it is partitioned")


def test_nullable_reaches_into_nested_types():
    nested = schema(a_required=t.ArrayType(schema(x_required=t.MapType(TEXT, LONG, False)), False))
    (field,) = nullable_schema(nested).fields
    assert field.nullable
    assert field.dataType.containsNull
    (inner,) = field.dataType.elementType.fields
    assert inner.nullable
    assert inner.dataType.valueContainsNull


ALLOWED = frozenset({"string", "bigint", "decimal"})


@pytest.mark.parametrize(
    "column", [TEXT, t.DecimalType(20, 3), t.ArrayType(TEXT), t.MapType(TEXT, LONG), schema(x=t.ArrayType(LONG))]
)
def test_a_type_is_allowed_by_its_name_at_any_depth(column):
    refuse_types(schema(a=column), ALLOWED, "Delta")


@pytest.mark.parametrize(
    ("column", "path", "name"),
    [
        (INT, "a", "int"),
        (t.ArrayType(INT), r"a\[\]", "int"),
        (t.MapType(INT, LONG), r"a\.key", "int"),
        (t.MapType(TEXT, t.DateType()), r"a\.value", "date"),
        (schema(x=t.ArrayType(schema(y=t.BooleanType()))), r"a\.x\[\]\.y", "boolean"),
    ],
)
def test_a_refused_type_is_named_with_its_path(column, path, name):
    with pytest.raises(ConfigError, match=f"^column {path} is of type {name}, which Delta does not have"):
        refuse_types(schema(a=column), ALLOWED, "Delta")


def test_without_nested_types_the_column_itself_counts():
    with pytest.raises(ConfigError, match=r"column a is of type array<string>"):
        refuse_types(schema(a=t.ArrayType(TEXT)), ALLOWED, "DynamoDB", nested=False)
