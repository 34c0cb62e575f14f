"""Checks whether rows match the schema of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType, StructType


def nullable_schema(schema: StructType) -> StructType:
    """The schema with all columns nullable and without metadata: rows may lack any column."""
    from pyspark.sql import types as t

    def nullable(kind: DataType) -> DataType:
        match kind:
            case t.StructType():
                return nullable_schema(kind)
            case t.ArrayType():
                return t.ArrayType(nullable(kind.elementType), True)
            case t.MapType():
                return t.MapType(nullable(kind.keyType), nullable(kind.valueType), True)
        return kind

    return t.StructType([t.StructField(field.name, nullable(field.dataType), True) for field in schema.fields])


def refuse_types(schema: StructType, allowed: frozenset[str], system: str, *, nested: bool = True) -> None:
    """ConfigError for a column with a type that `system` does not support. `allowed` are Spark's type names."""
    columns = _leaves(schema) if nested else ((field.name, field.dataType) for field in schema.fields)
    for path, kind in columns:
        if kind.simpleString().partition("(")[0] not in allowed:
            raise ConfigError(
                f"column {path} is of type {kind.simpleString()}, which {system} does not have",
                hint=f'cast it in the transform: rows.withColumn("{path}", …)',
            )


def _leaves(kind: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    from pyspark.sql import types as t

    match kind:
        case t.StructType():
            for field in kind.fields:
                yield from _leaves(field.dataType, f"{path}.{field.name}" if path else field.name)
        case t.ArrayType():
            yield from _leaves(kind.elementType, f"{path}[]")
        case t.MapType():
            yield from _leaves(kind.keyType, f"{path}.key")
            yield from _leaves(kind.valueType, f"{path}.value")
        case _:
            yield path, kind


def missing_columns(rows: StructType, table: StructType, where: object, reason: str = "") -> StructType:
    """The columns of the rows that the table lacks. ConfigError, with both schemas, if the others do not match.

    Columns of the table that the rows lack are NULL; ConfigError if the table forbids NULL.
    """
    from pyspark.sql.types import StructType

    expected, existing = nullable_schema(rows), nullable_schema(table)
    types = {field.name: field.dataType for field in existing.fields}
    present = set(expected.names)
    mismatched = [field.name for field in expected.fields if types.get(field.name, field.dataType) != field.dataType]
    mismatched += [field.name for field in table.fields if not field.nullable and field.name not in present]
    if mismatched or reason:
        raise schema_mismatch(rows, table, where, reason or f"see {', '.join(mismatched)}")
    return StructType([field for field in expected.fields if field.name not in types])


def schema_mismatch(rows: StructType, table: StructType, where: object, reason: str) -> ConfigError:
    return ConfigError(
        f"the rows do not fit {where}: {reason}; rows: {_shown(rows)}; table: {_shown(table)}",
        hint="change the transform, or name another table",
    )


def _shown(schema: StructType) -> str:
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
        for field in schema.fields
    )
