"""Encodes Spark's values as BSON."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.connectors.shared.document_encoder import DocumentEncoder, UnsupportedValue
from headrace.errors import ConfigError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import DataType, StructType

    from headrace.connectors.shared.document_encoder import Nulls

GUARD = "_headrace"
"""The field with the record that an upserted document came from."""
MAX_BYTES = 16 * 1024 * 1024
# Times without a zone are stored as UTC.
_UNCHANGED = (
    *("boolean", "byte", "short", "integer", "float", "double"),
    *("string", "char", "varchar", "binary", "timestamp", "timestamp_ntz"),
)


@cache
def document_encoder() -> DocumentEncoder:
    int64 = require("bson.int64", extra="mongo").Int64
    return DocumentEncoder(
        {
            **dict.fromkeys(_UNCHANGED, _unchanged),
            "long": int64,
            "decimal": _decimal,
            "date": _midnight,
            "time": time.isoformat,
        },
        variant=_by_value,
    )


def check_names(schema: StructType, key: tuple[str, ...], sink: object) -> None:
    """ConfigError for column names with a special meaning in MongoDB."""
    for name in schema.names:
        if name == GUARD or (name == "_id" and key != ("_id",)):
            raise ConfigError(
                f"{sink!r}: the column name {name} is reserved by Headrace", hint="rename it in the transform"
            )
    for name in _names(schema):
        if not name or name.startswith("$") or "." in name or "\0" in name:
            raise ConfigError(
                f"{sink!r}: MongoDB does not support the field name {name!r}", hint="rename it in the transform"
            )


def key_part(value: Any, name: str) -> Any:
    """UnsupportedValue for values that differ in Spark but not in MongoDB: one document would replace the other."""
    if isinstance(value, datetime) and value.microsecond % 1000:
        raise UnsupportedValue(
            f"{name}, which is in the key, has microseconds, but MongoDB stores milliseconds: {value}"
        )
    if isinstance(value, float) and math.isnan(value):
        raise UnsupportedValue(f"{name}, which is in the key, is NaN")
    return value


def encode_value(document: dict[str, Any]) -> Any:
    """Encode a document once, as it is sent. UnsupportedValue if that is not possible."""
    bson = require("bson", extra="mongo")
    try:
        raw = bson.encode(document)
    except (require("bson.errors", extra="mongo").BSONError, OverflowError, ValueError) as error:
        raise UnsupportedValue(str(error).rpartition(" | ")[2]) from error
    if len(raw) > MAX_BYTES:
        raise UnsupportedValue(f"the document has {len(raw):,} bytes: expected at most {MAX_BYTES:,}")
    return require("bson.raw_bson", extra="mongo").RawBSONDocument(raw)


def reference(kind: DataType, collection: str, nulls: Nulls) -> Callable[[Any], Any]:
    """A function that converts a value to a DBRef. `$id` is encoded as `_id` is from a key: one value or a document."""
    from pyspark.sql.types import StructType

    dbref = require("bson.dbref", extra="mongo").DBRef
    encode = document_encoder().encoder_for(kind, nulls)
    names = kind.names if isinstance(kind, StructType) else []

    def to_dbref(value: Any) -> Any:
        if missing := [name for name in names if value[name] is None]:
            raise UnsupportedValue(f"{missing[0]} is NULL, so it refers to no document")
        encoded = encode(value)
        return dbref(collection, encoded[names[0]] if len(names) == 1 else encoded)

    return to_dbref


def check_references(schema: StructType, references: Mapping[str, str], sink: object) -> None:
    """ConfigError for columns that cannot become a DBRef."""
    kinds = {field.name: field.dataType for field in schema.fields}
    for column in references:
        kind = kinds.get(column)
        if kind is None or kind.typeName() in {"array", "map", "variant"}:
            found = f"is {kind.simpleString()}" if kind else "is not there"
            raise ConfigError(
                f"{sink!r}: expected {column}, which dbref= names, to be a STRUCT or one value, but it {found}",
                hint='dbref={"author": "authors"}, where author is STRUCT<id: BIGINT>',
            )


def _names(kind: DataType) -> list[str]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return [*kind.names, *(name for field in kind.fields for name in _names(field.dataType))]
    if isinstance(kind, ArrayType):
        return _names(kind.elementType)
    return [*_names(kind.keyType), *_names(kind.valueType)] if isinstance(kind, MapType) else []


def _unchanged(value: Any) -> Any:
    return value


def _midnight(value: date) -> datetime:
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def _decimal(value: Decimal) -> Any:
    try:
        return require("bson.decimal128", extra="mongo").Decimal128(value)
    except ArithmeticError as error:
        raise UnsupportedValue(f"{value} has more than the 34 digits of a Decimal128") from error


def _by_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return _midnight(value)
    return value
