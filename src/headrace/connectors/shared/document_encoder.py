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

    def check(self, schema: StructType, who: object) -> None:
        """ConfigError if a column has a type that the store does not support."""
        for field in schema.fields:
            if found := self._unsupported_type(field.dataType):
                raise ConfigError(
                    f"{who!r} cannot store {field.name}: it is {found.simpleString()}",
                    hint=f"cast it in the transform: CAST({field.name} AS STRING)",
                )

    def _unsupported_type(self, kind: DataType) -> DataType | None:
        from pyspark.sql.types import ArrayType, MapType, StructType

        if isinstance(kind, StructType):
            inner = [field.dataType for field in kind.fields]
        elif isinstance(kind, ArrayType):
            inner = [kind.elementType]
        elif isinstance(kind, MapType):
            inner = [kind.keyType, kind.valueType]
        else:
            return None if kind.typeName() in {*self.leaves, "variant", "void"} else kind
        return next((found for one in inner if (found := self._unsupported_type(one))), None)

    def encoder_for(self, kind: DataType, nulls: Nulls) -> Encoder:
        """A function that encodes Arrow values of this type, except NULL."""
        from pyspark.sql.types import ArrayType, MapType, StringType, StructType

        if isinstance(kind, StructType):
            fields = {field.name: self.encoder_for(field.dataType, nulls) for field in kind.fields}
            return lambda value: self.document(self.fields(fields, value, nulls))
        if isinstance(kind, ArrayType):
            element = self._or_null(kind.elementType, nulls)
            return lambda value: self.array([element(one) for one in value])
        if isinstance(kind, MapType):
            made = self._or_null(kind.valueType, nulls)
            if isinstance(kind.keyType, StringType):
                return lambda value: self.document({key: made(one) for key, one in value})
            key_of = self.encoder_for(kind.keyType, nulls)
            return lambda value: self.array(
                [self.document({"key": key_of(key), "value": made(one)}) for key, one in value]
            )
        if kind.typeName() == "variant":
            return lambda value: self._encode_variant(_decode_variant(value))
        return self.leaves.get(kind.typeName(), self.variant)

    def fields(self, encoders: Mapping[str, Encoder], value: Mapping[str, Any], nulls: Nulls) -> dict[str, Any]:
        """The encoded fields. UnsupportedValue, with the name of the field, if one cannot be stored."""
        out = {}
        for name, made in encoders.items():
            one = value[name]
            if one is not None:
                try:
                    out[name] = made(one)
                except UnsupportedValue as error:
                    raise UnsupportedValue(f"{name}: {error}") from error
            elif nulls == "keep":
                out[name] = self.null
        return out

    def _or_null(self, kind: DataType, nulls: Nulls) -> Encoder:
        made = self.encoder_for(kind, nulls)
        return lambda value: self.null if value is None else made(value)

    def _encode_variant(self, value: Any) -> Any:
        if value is None:
            return self.null
        if isinstance(value, dict):
            return self.document({key: self._encode_variant(one) for key, one in value.items()})
        if isinstance(value, list):
            return self.array([self._encode_variant(one) for one in value])
        return self.variant(value)


def _decode_variant(variant: Any) -> Any:
    from pyspark.sql.types import VariantVal

    return VariantVal(variant["value"], variant["metadata"]).toPython()
