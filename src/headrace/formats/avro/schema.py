"""The Avro schema of a row, derived from its Spark types."""

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


_DEEPEST = 200
_MOST_FIELDS = 10_000
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def refuse_deep(text: str) -> None:
    """ConfigError for a schema that is nested so deeply that reading it would exhaust the stack, here or in Java."""
    depth = 0
    for bracket in re.finditer(r"[][{}]", _STRINGS.sub('""', text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > _DEEPEST:
            raise ConfigError(f"this Avro schema is nested more than {_DEEPEST} levels deep: {text[:80]}…")


def refuse_large(text: str) -> None:
    """ConfigError for a schema with too many fields for a row of Spark, where a named type counts wherever it is used.

    A few lines are enough: each record has two fields of the type of the one before.
    """
    if _size(json.loads(text), "", {}) > _MOST_FIELDS:
        raise ConfigError(
            "the fields of this Avro schema, with those of each type wherever it is used, are more than"
            f" {_MOST_FIELDS:,}: {text[:80]}…"
        )


def _size(schema: Any, namespace: str, known: dict[str, int]) -> int:
    """How many values a schema has; `known` are the named types so far."""
    match schema:
        case str():
            return known.get(schema) or known.get(f"{namespace}.{schema}", 1)
        case list():
            return sum(_size(branch, namespace, known) for branch in schema)
        case {"name": name, "fields": fields}:
            own = schema.get("namespace", namespace)
            whole = name if "." in name else f"{own}.{name}"
            known[whole] = 1  # within itself
            known[whole] = 1 + sum(_size(field["type"], whole.rpartition(".")[0], known) for field in fields)
            return known[whole]
        case {"items": inner} | {"values": inner} | {"type": inner}:
            return _size(inner, namespace, known)
    return 1


def record(columns: Mapping[str, Any], name: str, namespace: str | None = None) -> dict[str, Any]:
    """A record with a field for each of `columns`, whose types are as Spark's JSON of a schema has them.

    Whatever can be NULL to Avro is: whether Spark thinks that a column can be changes with the plan, and each change
    would be another schema. A column that is added later has NULL in the records from before.
    """
    if not columns:
        raise ConfigError("there are no columns to write as Avro", hint="select some in the transform")
    return _record([(column, kind, column) for column, kind in columns.items()], name, namespace)


def allowed(name: str) -> bool:
    """Whether Avro takes this as the name of a record or a field."""
    return _NAME.fullmatch(name) is not None


def made_name(text: str) -> str:
    """The name of a record that is nearest to `text`."""
    near = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return near if allowed(near) else f"_{near}"


def _record(fields: list[tuple[str, Any, str]], name: str, namespace: str | None) -> dict[str, Any]:
    """`fields` are names, types, and the path to each in the row."""
    # The names of records within are made of the path to them, so that no two are the same.
    within = f"{namespace}.{name}" if namespace else name
    described: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        described["namespace"] = namespace
    described["fields"] = [
        {"name": _checked(field, path), "type": _nullable(_type(kind, field, within, path)), "default": None}
        for field, kind, path in fields
    ]
    return described


def _type(kind: Any, name: str, namespace: str, path: str) -> Any:
    """`name` and `namespace` are those of a record, if it is one or holds one."""
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
                f"the column {path} is a map with keys of {_shown(key)}; in Avro they are text",
                hint=f"transform_keys({path}, (k, v) -> CAST(k AS STRING)) in the transform",
            )
    raise ConfigError(
        f"the column {path} is {_shown(kind)}, which Avro does not have",
        hint=f"CAST({path} AS STRING) in the transform",
    )


def _nullable(kind: Any) -> list[Any]:
    return ["null", kind]


def _checked(field: str, path: str) -> str:
    if not allowed(field):
        raise ConfigError(
            f"the column {path!r} has a name that Avro does not allow: letters, digits and _ are, no digit first",
            hint=f"rename it in the transform: {made_name(field)}",
        )
    return field


def _shown(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, dict) else kind)
