"""Cassandra's types: which Spark types they store, and the conversion of values for the driver."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint", "varint", "decimal"})
_TOKENS = re.compile(r'"(?:[^"]|"")+"|[\w\']+|[<>,]')

# By Spark type: the type in a new table, and the types of existing columns that store it. The server rejects a value
# that is out of range for its column, but does not reject one that it has to round: columns that round are not listed.
_TYPES: dict[str, tuple[str, frozenset[str]]] = {
    "boolean": ("boolean", frozenset({"boolean"})),
    "byte": ("tinyint", _INTEGERS | {"float", "double"}),
    "short": ("smallint", _INTEGERS | {"float", "double"}),
    "integer": ("int", _INTEGERS | {"double"}),
    "long": ("bigint", _INTEGERS),
    "float": ("float", frozenset({"float", "double"})),
    "double": ("double", frozenset({"double"})),
    "decimal": ("decimal", frozenset({"decimal"})),
    "string": ("text", frozenset({"text", "ascii", "uuid", "timeuuid", "inet"})),
    "char": ("text", frozenset({"text", "ascii"})),
    "varchar": ("text", frozenset({"text", "ascii"})),
    "binary": ("blob", frozenset({"blob"})),
    "date": ("date", frozenset({"date", "timestamp"})),
    "timestamp": ("timestamp", frozenset({"timestamp"})),
    "time": ("time", frozenset({"time"})),
    "daytimeinterval": ("duration", frozenset({"duration"})),
}


@dataclass(frozen=True, slots=True)
class CqlType:
    """A type and its element types. `fields` are the names of a user-defined type."""

    name: str
    elements: tuple[CqlType, ...] = ()
    fields: tuple[str, ...] = ()
    frozen: bool = False

    @property
    def is_unfrozen_list(self) -> bool:
        """Each element is a separate cell: a list that is written twice with one timestamp has each element twice."""
        return self.name == "list" and not self.frozen

    def to_driver(self, value: Any) -> Any:
        """Convert a value from Arrow for the driver. ValueError if the type has no such value."""
        if value is None:
            return None
        match self.name:
            case "list" | "set" | "vector":
                return [self.elements[0].to_driver_element(item) for item in value]
            case "map":
                key_type, value_type = self.elements
                pairs = [(key_type.to_driver_element(k), value_type.to_driver_element(v)) for k, v in value]
                return require("cassandra.util", extra="cassandra").OrderedMap(pairs)
            case "tuple":
                return tuple(part.to_driver(item) for part, item in zip(self.elements, value.values(), strict=True))
            case "uuid" | "timeuuid":
                return uuid.UUID(value)
            case "double" | "float":
                return float(value)
            case "duration":
                nanoseconds = (value.days * 86_400 + value.seconds) * 10**9 + value.microseconds * 1_000
                return require("cassandra.util", extra="cassandra").Duration(0, 0, nanoseconds)
        if self.fields:
            parts = zip(self.fields, self.elements, strict=True)
            return tuple(part.to_driver(value.get(name)) for name, part in parts)
        return value

    def to_driver_element(self, value: Any) -> Any:
        if value is None:
            raise ValueError(f"NULL in a collection of {self.name}, which Cassandra cannot store")
        return self.to_driver(value)


def check_key_value(value: Any) -> Any:
    """The value; ValueError if Cassandra stores it like another value, so that one row would replace the other."""
    if isinstance(value, datetime) and value.microsecond % 1000:
        raise ValueError(f"a key column with microseconds, and Cassandra stores milliseconds: {value}")
    return value


def parse_type(text: str, user_types: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> CqlType:
    """A type as text in `system_schema.columns`. `user_types` has the names and types of the fields of each."""
    tokens = _TOKENS.findall(text)

    def parse() -> CqlType:
        name = tokens.pop(0)
        elements = []
        if tokens and tokens[0] == "<":
            while tokens.pop(0) in "<,":
                elements.append(parse())
        if name == "frozen":
            return replace(elements[0], frozen=True)
        if name in ("tuple", "vector"):  # always one cell
            return CqlType(name, tuple(elements), frozen=True)
        unquoted = name[1:-1].replace('""', '"') if name.startswith('"') else name
        if not elements and unquoted in user_types:
            fields, types = user_types[unquoted]
            return CqlType(unquoted, tuple(parse_type(kind, user_types) for kind in types), tuple(fields))
        return CqlType(unquoted, tuple(elements))

    return parse()


def cql_type(column: str, kind: DataType) -> str:
    """The type of a column of a new table, as CQL. ConfigError if Cassandra has no type for it."""
    from pyspark.sql import types as t

    match kind:
        case t.ArrayType():
            return f"frozen<list<{cql_type(column, kind.elementType)}>>"
        case t.MapType():
            return f"frozen<map<{cql_type(column, kind.keyType)}, {cql_type(column, kind.valueType)}>>"
        case t.StructType():
            return f"frozen<tuple<{', '.join(cql_type(column, field.dataType) for field in kind.fields)}>>"
    try:
        return _TYPES[_type_name(kind)][0]
    except KeyError:
        raise ConfigError(
            f"{column} is {kind.simpleString()}, which Cassandra has no type for",
            hint=f"change it in the transform, for example CAST({column} AS STRING)",
        ) from None


def fits(kind: DataType, cql: CqlType) -> bool:
    """Whether a column of the CQL type stores values of the Spark type."""
    from pyspark.sql import types as t

    parts = cql.elements
    match kind:
        case t.ArrayType():
            is_list = cql.name in ("list", "set", "vector") and not cql.is_unfrozen_list
            return is_list and fits(kind.elementType, parts[0])
        case t.MapType():
            return cql.name == "map" and fits(kind.keyType, parts[0]) and fits(kind.valueType, parts[1])
        case t.StructType():
            if cql.name == "tuple":
                pairs = zip(kind.fields, parts, strict=False)
                return len(kind.fields) == len(parts) and all(fits(field.dataType, part) for field, part in pairs)
            fields = dict(zip(cql.fields, parts, strict=True)) if cql.fields else {}
            return all(field.name in fields and fits(field.dataType, fields[field.name]) for field in kind.fields)
    return cql.name in _TYPES.get(_type_name(kind), ("", frozenset()))[1]


def _type_name(kind: DataType) -> str:
    """Spark's name without parameters: time for TIME(6)."""
    return kind.typeName().partition("(")[0]
