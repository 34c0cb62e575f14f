"""Encodes Spark's values as DynamoDB attributes."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.connectors.shared.document_encoder import DocumentEncoder, UnsupportedValue
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NUMBERS = ("byte", "short", "integer", "long", "decimal")
_TEXTS = ("string", "char", "varchar")
_KEYS = {
    **dict.fromkeys((*_NUMBERS, "float", "double"), "N"),
    **dict.fromkeys((*_TEXTS, "date", "timestamp", "timestamp_ntz", "time"), "S"),
    "binary": "B",
}


@cache
def document_encoder() -> DocumentEncoder:
    return DocumentEncoder(
        {
            **dict.fromkeys(_NUMBERS, _number),
            **dict.fromkeys(_TEXTS, _text),
            "boolean": lambda value: {"BOOL": value},
            "float": _float,
            "double": _float,
            "binary": lambda value: {"B": value},
            "date": lambda value: {"S": value.isoformat()},
            "timestamp": _time,
            "timestamp_ntz": _time,
            "time": lambda value: {"S": value.isoformat("microseconds")},
        },
        variant=_by_value,
        document=lambda fields: {"M": fields},
        array=lambda elements: {"L": elements},
        null={"NULL": True},
    )


def attribute(schema: StructType, column: str, who: object) -> dict[str, str]:
    """The attribute definition of a key column. ConfigError if its type cannot be in a key."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if column not in kinds:
        raise ConfigError(f"{who!r}: the rows have no column {column}, which is in a key", hint=f"rows: {list(kinds)}")
    kind = _KEYS.get(kinds[column].typeName())
    if kind is None:
        raise ConfigError(
            f"{who!r}: {column}, which is in a key, is {kinds[column].simpleString()}",
            hint="a key is a text, a number or binary: cast it in the transform",
        )
    return {"AttributeName": column, "AttributeType": kind}


def _number(value: Any) -> dict[str, Any]:
    return {"N": str(value)}


def _text(value: str) -> dict[str, Any]:
    return {"S": value}


def _float(value: float) -> dict[str, Any]:
    if not math.isfinite(value):
        raise UnsupportedValue(f"DynamoDB has no {value}")
    return {"N": repr(value)}


def _time(value: datetime) -> dict[str, Any]:
    """A time with all digits, so that texts sort in the order of times."""
    if value.tzinfo is None:
        return {"S": value.isoformat(timespec="microseconds")}
    return {"S": value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"}


def _by_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, datetime):
        return _time(value)
    return {"S": value.isoformat()} if isinstance(value, date | time) else _number(value)
