"""Encodes Spark's values for Redis: text or bytes per value, or a whole row as JSON."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import DataType

    Convert = Callable[[Any], Any]

_ESCAPED = str.maketrans({"%": "%25", ":": "%3A", "{": "%7B", "}": "%7D"})


def converters(types: Mapping[str, DataType]) -> dict[str, Convert]:
    """For each column, a function that converts its values to JSON values. ConfigError for an unsupported type."""
    return {name: _converter(kind, name) for name, kind in types.items()}


def as_json(values: Mapping[str, Any], converters: Mapping[str, Convert]) -> str:
    """The row as a JSON object; NULL becomes null."""
    converted = {name: None if value is None else converters[name](value) for name, value in values.items()}
    return json.dumps(converted, ensure_ascii=False, separators=(",", ":"))


def as_fields(values: Mapping[str, Any], converters: Mapping[str, Convert]) -> list[str | bytes]:
    """Alternating names and values, without columns that are NULL."""
    return [
        item for name, value in values.items() if value is not None for item in (name, as_text(value, converters[name]))
    ]


def as_text(value: Any, convert: Convert) -> str | bytes:
    if isinstance(value, str | bytes):
        return value
    converted = convert(value)
    return converted if isinstance(converted, str) else json.dumps(converted, ensure_ascii=False, separators=(",", ":"))


def key_of(name: str, parts: tuple[Any, ...], converters: tuple[Convert, ...]) -> str:
    """`name:value:value`. Colons in values are escaped, so that no two rows share a key."""
    texts = [convert(part) for part, convert in zip(parts, converters, strict=True)]
    encoded = [text if isinstance(text, str) else json.dumps(text) for text in texts]
    return ":".join([name, *(text.translate(_ESCAPED) for text in encoded)])


def _unchanged(value: Any) -> Any:
    return value


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Any) -> str:
    return f"{value:f}"


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _date(value: Any) -> str:
    return str(value.isoformat())


def _time(value: Any) -> str:
    return str(value.astimezone(UTC).replace(tzinfo=None).isoformat()) + "Z"


def _converter(kind: DataType, name: str) -> Convert:
    from pyspark.sql import types as spark

    nested = _nested_converter(kind, name)
    if nested is not None:
        return nested
    simple: list[tuple[tuple[type[DataType], ...], Convert]] = [
        ((spark.BooleanType, spark.IntegralType, spark.StringType, spark.NullType), _unchanged),
        ((spark.FractionalType,), _decimal if isinstance(kind, spark.DecimalType) else _number),
        ((spark.BinaryType,), _bytes),
        ((spark.DateType, spark.TimestampNTZType), _date),
        ((spark.TimestampType,), _time),
    ]
    for kinds, convert in simple:
        if isinstance(kind, kinds):
            return convert
    raise ConfigError(
        f"{name} is {kind.simpleString()}, which Redis cannot store",
        hint=f"CAST({name} AS STRING) in the transform",
    )


def _nested_converter(kind: DataType, name: str) -> Convert | None:
    from pyspark.sql import types as spark

    if isinstance(kind, spark.ArrayType):
        element = _or_null(_converter(kind.elementType, name))
        return lambda items: [element(item) for item in items]
    if isinstance(kind, spark.MapType):
        key, value = _converter(kind.keyType, name), _or_null(_converter(kind.valueType, name))
        return lambda pairs: {str(as_text(key(k), _unchanged)): value(v) for k, v in pairs}
    if isinstance(kind, spark.StructType):
        parts = {field.name: _or_null(_converter(field.dataType, name)) for field in kind.fields}
        return lambda struct: {part: convert(struct[part]) for part, convert in parts.items()}
    return None


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
