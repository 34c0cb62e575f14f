"""Encodes Spark's values as the bytes of a cell (readable UTF-8 text, binary unchanged) and as row keys."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType, StructType

SEPARATOR, _ESCAPE = b"|", b"\\"
_PLAIN = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string", "char", "varchar", "binary"}
    | {"date", "timestamp", "timestamp_ntz", "time"}
)


def check(schema: StructType) -> None:
    """ConfigError, with the name of the column, for a type that is not supported."""
    from pyspark.sql import types as t

    def leaf_types(kind: DataType) -> list[DataType]:
        match kind:
            case t.StructType():
                return [leaf for field in kind.fields for leaf in leaf_types(field.dataType)]
            case t.ArrayType():
                return leaf_types(kind.elementType)
            case t.MapType():
                return [*leaf_types(kind.keyType), *leaf_types(kind.valueType)]
        return [kind]

    for field in schema.fields:
        for kind in leaf_types(field.dataType):
            if kind.typeName().partition("(")[0] not in _PLAIN:
                raise ConfigError(
                    f"{field.name} is {field.dataType.simpleString()}, which cannot be encoded as the bytes of a cell",
                    hint=f"change it in the transform, for example CAST({field.name} AS STRING)",
                )


def cell(kind: DataType, value: Any) -> bytes:
    """Encode a value that is not NULL. `kind` distinguishes an empty map from an empty array."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list | dict):
        return json.dumps(_json(kind, value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return _text(value).encode()


def row_key(kinds: Sequence[DataType], values: Sequence[Any]) -> bytes:
    """The values joined by a separator, which is escaped where it occurs in a value."""
    cells = (cell(kind, value) for kind, value in zip(kinds, values, strict=True))
    return SEPARATOR.join(
        text.replace(_ESCAPE, _ESCAPE + _ESCAPE).replace(SEPARATOR, _ESCAPE + SEPARATOR) for text in cells
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat()
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, int):
        return str(value)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return format(value, "f")  # a decimal, without an exponent


def _json(kind: DataType, value: Any) -> Any:
    from pyspark.sql import types as t

    if value is None or isinstance(value, bool | int | str):
        return value
    match kind:
        case t.ArrayType():
            return [_json(kind.elementType, element) for element in value]
        case t.MapType():
            return {_key(kind.keyType, key): _json(kind.valueType, item) for key, item in value}
        case t.StructType():
            return {field.name: _json(field.dataType, value[field.name]) for field in kind.fields}
    if isinstance(value, float) and math.isfinite(value):
        return value
    return base64.b64encode(value).decode() if isinstance(value, bytes) else _text(value)


def _key(kind: DataType, value: Any) -> str:
    found = _json(kind, value)
    if isinstance(found, str):
        return found
    return _text(found) if not isinstance(found, list | dict) else json.dumps(found, ensure_ascii=False)
