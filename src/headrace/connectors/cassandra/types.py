"""Cassandra's types: which of Spark's go into them, and values as the driver takes them."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint", "varint", "decimal"})
_PARTS = re.compile(r'"(?:[^"]|"")+"|[\w\']+|[<>,]')

# By Spark's name of a type: the type in a new table, and those of columns that are there which take it. A value that a
# column has no room for is refused; one that it would round is not, so columns that round are not among them.
_KINDS: dict[str, tuple[str, frozenset[str]]] = {
    "boolean": ("boolean", frozenset({"boolean"})),
    "byte": ("tinyint", _WHOLE | {"float", "double"}),
    "short": ("smallint", _WHOLE | {"float", "double"}),
    "integer": ("int", _WHOLE | {"double"}),
    "long": ("bigint", _WHOLE),
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
    """A type, as a tree. `names` are the fields of a user-defined one."""

    name: str
    of: tuple[CqlType, ...] = ()
    names: tuple[str, ...] = ()
    frozen: bool = False

    @property
    def loose(self) -> bool:
        """A list whose elements are cells of their own: written twice with one timestamp it has them twice."""
        return self.name == "list" and not self.frozen

    def value(self, value: Any) -> Any:
        """A value as it comes out of Arrow, as the driver takes it. ValueError if there is no such value."""
        if value is None:
            return None
        match self.name:
            case "list" | "set" | "vector":
                return [self.of[0].inner(one) for one in value]
            case "map":
                pairs = [(self.of[0].inner(key), self.of[1].inner(one)) for key, one in value]
                return require("cassandra.util", extra="cassandra").OrderedMap(pairs)
            case "tuple":
                return tuple(kind.value(one) for kind, one in zip(self.of, value.values(), strict=True))
            case "uuid" | "timeuuid":
                return uuid.UUID(value)
            case "double" | "float":
                return float(value)
            case "duration":
                nanoseconds = (value.days * 86_400 + value.seconds) * 10**9 + value.microseconds * 1_000
                return require("cassandra.util", extra="cassandra").Duration(0, 0, nanoseconds)
        if self.names:
            return tuple(kind.value(value.get(name)) for name, kind in zip(self.names, self.of, strict=True))
        return value

    def inner(self, value: Any) -> Any:
        if value is None:
            raise ValueError(f"a NULL in a {self.name} of a collection, which Cassandra does not keep")
        return self.value(value)


def key_part(value: Any) -> Any:
    """ValueError for values that differ in Spark and not in Cassandra: one would take the other's place."""
    if isinstance(value, datetime) and value.microsecond % 1000:
        raise ValueError(f"it is in the key and has microseconds, and Cassandra keeps milliseconds: {value}")
    return value


def parsed(text: str, user_types: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> CqlType:
    """A type as `system_schema.columns` has it. `user_types` gives the fields of each: their names, and their types."""
    parts = _PARTS.findall(text)

    def one() -> CqlType:
        name = parts.pop(0)
        inside = []
        if parts and parts[0] == "<":
            while parts.pop(0) in "<,":
                inside.append(one())
        if name == "frozen":
            return CqlType(inside[0].name, inside[0].of, inside[0].names, frozen=True)
        if name in ("tuple", "vector"):  # always one cell
            return CqlType(name, tuple(inside), frozen=True)
        plain = name[1:-1].replace('""', '"') if name.startswith('"') else name
        if not inside and plain in user_types:
            names, types = user_types[plain]
            return CqlType(plain, tuple(parsed(kind, user_types) for kind in types), tuple(names))
        return CqlType(plain, tuple(inside))

    return one()


def new_type(column: str, kind: DataType) -> str:
    """What a column of a new table is. ConfigError if there is nothing for it."""
    from pyspark.sql import types as t

    match kind:
        case t.ArrayType():
            return f"frozen<list<{new_type(column, kind.elementType)}>>"
        case t.MapType():
            return f"frozen<map<{new_type(column, kind.keyType)}, {new_type(column, kind.valueType)}>>"
        case t.StructType():
            return f"frozen<tuple<{', '.join(new_type(column, field.dataType) for field in kind.fields)}>>"
    try:
        return _KINDS[_name(kind)][0]
    except KeyError:
        raise ConfigError(
            f"{column} is {kind.simpleString()}, which Cassandra has no type for",
            hint=f"change it in the transform, for example CAST({column} AS STRING)",
        ) from None


def fits(kind: DataType, there: CqlType) -> bool:
    """Whether values of the type go into a column that is `there`."""
    from pyspark.sql import types as t

    match kind:
        case t.ArrayType():
            return there.name in ("list", "set", "vector") and not there.loose and fits(kind.elementType, there.of[0])
        case t.MapType():
            return there.name == "map" and fits(kind.keyType, there.of[0]) and fits(kind.valueType, there.of[1])
        case t.StructType():
            if there.name == "tuple":
                parts = zip(kind.fields, there.of, strict=False)
                return len(kind.fields) == len(there.of) and all(fits(field.dataType, of) for field, of in parts)
            fields = dict(zip(there.names, there.of, strict=True)) if there.names else {}
            return all(field.name in fields and fits(field.dataType, fields[field.name]) for field in kind.fields)
    return there.name in _KINDS.get(_name(kind), ("", frozenset()))[1]


def _name(kind: DataType) -> str:
    """Spark's own, without parameters: a TIME(6) is a time."""
    return kind.typeName().partition("(")[0]
