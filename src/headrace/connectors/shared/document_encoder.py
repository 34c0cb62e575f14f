"""Encodes rows as documents: structs, arrays, maps and NULLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.errors import ConfigError
from headrace.support.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import DataType, StructType

    Encoder = Callable[[Any], Any]

Nulls = Literal["omit", "keep"]


def check_nulls(nulls: str) -> Nulls:
    check_choice("nulls", nulls, get_args(Nulls), hint='"omit" leaves a field out that is NULL, "keep" stores it')
    return nulls  # type: ignore[return-value]


class UnsupportedValue(ValueError):
    """Raised for a value that the store cannot represent."""


@dataclass(frozen=True, slots=True)
class DocumentEncoder:
    """Encodes values for a store. `leaves` has the encoders by Spark's type names; `variant` encodes values whose type
    is not known in advance."""

    leaves: Mapping[str, Encoder]
    variant: Encoder
    document: Encoder = dict
    array: Encoder = list
    null: Any = None

    def check(self, schema: StructType, sink: object) -> None:
        """ConfigError if a column has a type that the store does not support."""
        for field in schema.fields:
            if unsupported := self._unsupported_type(field.dataType):
                raise ConfigError(
                    f"{sink!r} cannot store {field.name}: it is {unsupported.simpleString()}",
                    hint=f"cast it in the transform: CAST({field.name} AS STRING)",
                )

    def _unsupported_type(self, kind: DataType) -> DataType | None:
        from pyspark.sql.types import ArrayType, MapType, StructType

        if isinstance(kind, StructType):
            nested = [field.dataType for field in kind.fields]
        elif isinstance(kind, ArrayType):
            nested = [kind.elementType]
        elif isinstance(kind, MapType):
            nested = [kind.keyType, kind.valueType]
        else:
            return None if kind.typeName() in {*self.leaves, "variant", "void"} else kind
        return next((found for part in nested if (found := self._unsupported_type(part))), None)

    def encoder_for(self, kind: DataType, nulls: Nulls) -> Encoder:
        """A function that encodes Arrow values of this type, except NULL."""
        from pyspark.sql.types import ArrayType, MapType, StringType, StructType

        if isinstance(kind, StructType):
            fields = {field.name: self.encoder_for(field.dataType, nulls) for field in kind.fields}
            return lambda value: self.document(self.fields(fields, value, nulls))
        if isinstance(kind, ArrayType):
            encode = self._or_null(kind.elementType, nulls)
            return lambda value: self.array([encode(item) for item in value])
        if isinstance(kind, MapType):
            encode = self._or_null(kind.valueType, nulls)
            if isinstance(kind.keyType, StringType):
                return lambda value: self.document({key: encode(item) for key, item in value})
            encode_key = self.encoder_for(kind.keyType, nulls)
            return lambda value: self.array(
                [self.document({"key": encode_key(key), "value": encode(item)}) for key, item in value]
            )
        if kind.typeName() == "variant":
            return lambda value: self._encode_variant(_decode_variant(value))
        return self.leaves.get(kind.typeName(), self.variant)

    def fields(self, encoders: Mapping[str, Encoder], value: Mapping[str, Any], nulls: Nulls) -> dict[str, Any]:
        """The encoded fields. UnsupportedValue, with the name of the field, if one cannot be stored."""
        encoded = {}
        for name, encode in encoders.items():
            item = value[name]
            if item is not None:
                try:
                    encoded[name] = encode(item)
                except UnsupportedValue as error:
                    raise UnsupportedValue(f"{name}: {error}") from error
            elif nulls == "keep":
                encoded[name] = self.null
        return encoded

    def _or_null(self, kind: DataType, nulls: Nulls) -> Encoder:
        encode = self.encoder_for(kind, nulls)
        return lambda value: self.null if value is None else encode(value)

    def _encode_variant(self, value: Any) -> Any:
        if value is None:
            return self.null
        if isinstance(value, dict):
            return self.document({key: self._encode_variant(item) for key, item in value.items()})
        if isinstance(value, list):
            return self.array([self._encode_variant(item) for item in value])
        return self.variant(value)


def _decode_variant(variant: Any) -> Any:
    from pyspark.sql.types import VariantVal

    return VariantVal(variant["value"], variant["metadata"]).toPython()
