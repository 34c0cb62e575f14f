"""Whether rows fit a table: the decisions that sinks with tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType, StructType


def plain(schema: StructType) -> StructType:
    """The schema with every column nullable and without metadata: what a table promises of rows that may lack any."""
    from pyspark.sql import types as t

    def nullable(kind: DataType) -> DataType:
        match kind:
            case t.StructType():
                return plain(kind)
            case t.ArrayType():
                return t.ArrayType(nullable(kind.elementType), True)
            case t.MapType():
                return t.MapType(nullable(kind.keyType), nullable(kind.valueType), True)
        return kind

    return t.StructType([t.StructField(field.name, nullable(field.dataType), True) for field in schema.fields])


def refuse_types(schema: StructType, allowed: frozenset[str], system: str, *, nested: bool = True) -> None:
    """ConfigError, naming the column, for a type that `system` does not have. `allowed` are Spark's type names."""
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
    """The columns of the rows that the table lacks. ConfigError, showing both, when the others do not fit.

    A column of the table that the rows lack becomes null there, unless the table forbids it.
    """
    from pyspark.sql.types import StructType

    wanted, there = plain(rows), plain(table)
    types = {field.name: field.dataType for field in there.fields}
    present = set(wanted.names)
    unfit = [field.name for field in wanted.fields if types.get(field.name, field.dataType) != field.dataType]
    unfit += [field.name for field in table.fields if not field.nullable and field.name not in present]
    if unfit or reason:
        raise schema_mismatch(rows, table, where, reason or f"see {', '.join(unfit)}")
    return StructType([field for field in wanted.fields if field.name not in types])


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
