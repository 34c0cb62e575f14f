"""Spark's types in PostgreSQL: the type of a new column, compatible existing types, and the text for COPY."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql import types

from headrace.errors import ConfigError
from headrace.spark.sql import time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField

_INTEGERS = {"int2", "int4", "int8", "numeric", "float4", "float8"}
_NESTED = {"json", "jsonb"}

# The type in a new table, and the types of existing columns that accept its text.
_TYPES: dict[type[DataType], tuple[str, set[str]]] = {
    types.BooleanType: ("boolean", {"bool"}),
    types.ByteType: ("smallint", _INTEGERS),
    types.ShortType: ("smallint", _INTEGERS),
    types.IntegerType: ("integer", _INTEGERS),
    types.LongType: ("bigint", _INTEGERS | {"oid"}),
    types.FloatType: ("real", {"float4", "float8", "numeric"}),
    types.DoubleType: ("double precision", {"float4", "float8", "numeric"}),
    types.DecimalType: ("numeric", {"numeric", "float4", "float8", "money"}),
    types.BinaryType: ("bytea", {"bytea"}),
    types.DateType: ("date", {"date", "timestamp", "timestamptz"}),
    types.TimestampType: ("timestamptz", {"timestamptz", "timestamp"}),
    types.TimestampNTZType: ("timestamp", {"timestamp"}),
    types.DayTimeIntervalType: ("interval", {"interval"}),
    types.YearMonthIntervalType: ("interval", {"interval"}),
    types.ArrayType: ("jsonb", _NESTED),
    types.MapType: ("jsonb", _NESTED),
    types.StructType: ("jsonb", _NESTED),
    types.VariantType: ("jsonb", _NESTED),
    types.NullType: ("text", {"text"}),
}
if hasattr(types, "TimeType"):  # Spark 4.1
    _TYPES[types.TimeType] = ("time", {"time"})

# Text is accepted by all types except numbers, times and similar ones, which need a cast in the transform.
_NOT_FROM_TEXT = set.union(*(accepted for _, accepted in _TYPES.values())) - _NESTED - {"text"}


def column_type(field: StructField) -> str:
    """The type of the column in a new table."""
    kind = field.dataType
    if isinstance(kind, types.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, types.StringType):
        return "text"
    return _postgres_types(field)[0]


def fits(field: StructField, pg_type: str) -> bool:
    """Whether a column of the type `pg_type`, as PostgreSQL's catalog names it, accepts the values of `field`."""
    if isinstance(field.dataType, types.StringType):
        return pg_type not in _NOT_FROM_TEXT
    return pg_type in _postgres_types(field)[1]


def copy_line(columns: Sequence[Column], fields: Sequence[StructField], *, utc: bool) -> Column:
    """A row as a line of COPY's text format. `utc`: the session writes times in UTC."""
    parts: list[Column] = []
    for column, field in zip(columns, fields, strict=True):
        parts += [sql.coalesce(_text(column, field, utc=utc), sql.lit("\\N")), sql.lit("\t")]
    return sql.concat(*parts[:-1], sql.lit("\n"))


def _text(column: Column, field: StructField, *, utc: bool) -> Column:
    match field.dataType:
        case types.StringType():
            return _escaped(column)
        case types.BinaryType():
            return sql.concat(sql.lit("\\\\x"), sql.hex(column))
        case types.TimestampType():
            return time_text(column, utc=utc)
        case types.DayTimeIntervalType():
            start = sql.lit("1970-01-01 00:00:00").cast("timestamp")
            micros = sql.unix_micros(start + column) - sql.unix_micros(start)
            return sql.concat(micros.cast("string"), sql.lit(" microseconds"))
        case types.YearMonthIntervalType():
            start = sql.lit("1970-01-01").cast("date")
            return sql.concat(
                sql.months_between(start + column, start).cast("bigint").cast("string"), sql.lit(" months")
            )
        case types.ArrayType() | types.MapType() | types.StructType():
            return _escaped(sql.to_json(column, {"ignoreNullFields": "false"}))
        case types.VariantType():
            return _escaped(sql.to_json(column))
        case types.NullType():
            return sql.lit(None).cast("string")
    _postgres_types(field)
    return column.cast("string")


def _escaped(column: Column) -> Column:
    text = column.cast("string")
    for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = sql.replace(text, sql.lit(plain), sql.lit(escaped))
    return text


def _postgres_types(field: StructField) -> tuple[str, set[str]]:
    try:
        return _TYPES[type(field.dataType)]
    except KeyError:
        raise ConfigError(
            f"{field.name} is {field.dataType.simpleString()}, which PostgreSQL has no type for",
            hint=f"change it in the transform, for example CAST({field.name} AS STRING)",
        ) from None
