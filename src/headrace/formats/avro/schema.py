"""Derives the Avro schema of a row from its Spark types, and limits the size of schemas."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_TYPES: dict[str, str | dict[str, str]] = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}


_MAX_DEPTH = 200
_MAX_FIELDS = 10_000
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def refuse_deep(text: str) -> None:
    """ConfigError for a schema nested so deeply that parsing it would overflow the stack, in Python or Java."""
    depth = 0
    for bracket in re.finditer(r"[][{}]", _STRINGS.sub('""', text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > _MAX_DEPTH:
            raise ConfigError(f"this Avro schema is nested more than {_MAX_DEPTH} levels deep: {text[:80]}…")


def refuse_large(text: str) -> None:
    """ConfigError for a schema with too many fields for a row of Spark; a named type counts at each use.

    A short schema can have many: if each record has two fields of the type of the previous one.
    """
    if _size(json.loads(text), "", {}) > _MAX_FIELDS:
        raise ConfigError(
            "the fields of this Avro schema, with those of each type wherever it is used, are more than"
            f" {_MAX_FIELDS:,}: {text[:80]}…"
        )


def _size(schema: Any, namespace: str, known: dict[str, int]) -> int:
    """The number of values of a schema; `known` are the named types so far."""
    match schema:
        case str():
            return known.get(schema) or known.get(f"{namespace}.{schema}", 1)
        case list():
            return sum(_size(branch, namespace, known) for branch in schema)
        case {"name": name, "fields": fields}:
            own = schema.get("namespace", namespace)
            full = name if "." in name else f"{own}.{name}"
            known[full] = 1  # within itself
            known[full] = 1 + sum(_size(field["type"], full.rpartition(".")[0], known) for field in fields)
            return known[full]
        case {"items": inner} | {"values": inner} | {"type": inner}:
            return _size(inner, namespace, known)
    return 1


def record(columns: Mapping[str, Any], name: str, namespace: str | None = None) -> dict[str, Any]:
    """A record schema with a field for each of `columns`, whose types are in Spark's JSON notation.

    All fields are nullable: what Spark considers nullable depends on the plan, and each change would be another schema.
    A column that is added later is NULL in earlier records.
    """
    if not columns:
        raise ConfigError("there are no columns to write as Avro", hint="select some in the transform")
    return _record([(column, kind, column) for column, kind in columns.items()], name, namespace)


def is_valid_name(name: str) -> bool:
    """Whether this is a valid name of a record or a field in Avro."""
    return _NAME.fullmatch(name) is not None


def nearest_name(text: str) -> str:
    """The valid name that is nearest to `text`."""
    near = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return near if is_valid_name(near) else f"_{near}"


def _record(fields: list[tuple[str, Any, str]], name: str, namespace: str | None) -> dict[str, Any]:
    """`fields` are names, types, and paths in the row."""
    # The namespace of nested records is the path to them, so that all names differ.
    within = f"{namespace}.{name}" if namespace else name
    described: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        described["namespace"] = namespace
    described["fields"] = [
        {"name": _check_name(field, path), "type": _nullable(_type(kind, field, within, path)), "default": None}
        for field, kind, path in fields
    ]
    return described


def _type(kind: Any, name: str, namespace: str, path: str) -> Any:
    """The Avro type; `name` and `namespace` are those of a record in it."""
    if isinstance(kind, str) and kind in _TYPES:
        return _TYPES[kind]
    if isinstance(kind, str) and (decimal := _DECIMAL.fullmatch(kind)):
        precision, scale = int(decimal[1]), int(decimal[2])
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    match kind:
        case {"type": "struct", "fields": fields}:
            if not fields:
                raise ConfigError(f"the column {path} is a struct without fields", hint="leave it out in the transform")
            found = [(field["name"], field["type"], f"{path}.{field['name']}") for field in fields]
            return _record(found, name, namespace)
        case {"type": "array", "elementType": element}:
            return {"type": "array", "items": _nullable(_type(element, name, namespace, path))}
        case {"type": "map", "keyType": "string", "valueType": value}:
            return {"type": "map", "values": _nullable(_type(value, name, namespace, path))}
        case {"type": "map", "keyType": key}:
            raise ConfigError(
                f"the column {path} is a map with keys of {_type_name(key)}; Avro allows only text",
                hint=f"transform_keys({path}, (k, v) -> CAST(k AS STRING)) in the transform",
            )
    raise ConfigError(
        f"the column {path} is {_type_name(kind)}, which Avro does not support",
        hint=f"CAST({path} AS STRING) in the transform",
    )


def _nullable(kind: Any) -> list[Any]:
    return ["null", kind]


def _check_name(field: str, path: str) -> str:
    if not is_valid_name(field):
        raise ConfigError(
            f"the column {path!r} has no valid Avro name: expected letters, digits and _, without a digit first",
            hint=f"rename it in the transform: {nearest_name(field)}",
        )
    return field


def _type_name(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, dict) else kind)
