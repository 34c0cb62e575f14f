"""Protobuf messages as Spark types, and the check of columns against them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from headrace.errors import ConfigError
from headrace.formats.protobuf.descriptors import build_descriptors, library
from headrace.formats.zigzag import encode_zigzag

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMESTAMP = "google.protobuf.Timestamp"
# Unsigned integers get a type that holds all of their values.
_KINDS: dict[str, t.DataType] = {
    "DOUBLE": t.DoubleType(),
    "FLOAT": t.FloatType(),
    "BOOL": t.BooleanType(),
    "STRING": t.StringType(),
    "BYTES": t.BinaryType(),
    "ENUM": t.StringType(),
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), t.IntegerType()),
    **dict.fromkeys(("INT64", "SINT64", "SFIXED64", "UINT32", "FIXED32"), t.LongType()),
    **dict.fromkeys(("UINT64", "FIXED64"), t.DecimalType(20, 0)),
}
WIDE = ("UINT64", "FIXED64")


class Messages:
    """The messages of one type. Sent to the executors as bytes, and built there once per process."""

    def __init__(self, name: str, descriptor: bytes) -> None:
        self.name, self.descriptor = name, descriptor
        self.type, _ = build_descriptors(name, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return Messages, (self.name, self.descriptor)

    @property
    def message_class(self) -> Any:
        """The class of the messages; in it, fields of closed enums are plain integers."""
        return build_descriptors(self.name, self.descriptor)[1]

    def row(self) -> t.StructType:
        """The columns. ConfigError for a message that contains itself."""
        return _struct(self.type, ())

    def message_index(self) -> bytes:
        """The index path of the message in its file, as in a registry's wire format."""
        path, message = [], self.type
        while message is not None:
            parent = message.containing_type
            siblings = message.file.message_types_by_name if parent is None else parent.nested_types_by_name
            path.append(list(siblings).index(message.name))
            message = parent
        if path == [0]:
            return b"\0"
        return b"".join(encode_zigzag(number) for number in (len(path), *reversed(path)))

    def check_columns(self, columns: Mapping[str, Any]) -> None:
        """ConfigError if rows with these columns cannot be encoded as messages."""
        known = {field.name: field.dataType.jsonValue() for field in self.row().fields}
        for name, kind in columns.items():
            if name not in known:
                raise ConfigError(
                    f"the message {self.name} has no field {name}", hint=f"it has: {', '.join(known)}; select those"
                )
            if not _same(kind, known[name]):
                shown = self.row()[name].dataType.simpleString()
                raise ConfigError(
                    f"the column {name} does not match the field of {self.name}: expected {shown.upper()}",
                    hint=f"CAST({name} AS {shown.upper()}) in the transform",
                )


def is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_wrapper(message: Any) -> bool:
    return bool(message.file.name == "google/protobuf/wrappers.proto")


def type_of(field: Any) -> str:
    return str(library("descriptor_pb2").FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def _struct(message: Any, parents: tuple[str, ...]) -> t.StructType:
    if message.full_name in parents:
        raise ConfigError(
            f"the message {message.full_name} contains itself, which columns cannot",
            hint="read hr.Bytes(), and decode it in the transform",
        )
    inside = (*parents, message.full_name)
    return t.StructType([t.StructField(field.name, _field_type(field, inside)) for field in message.fields])


def _field_type(field: Any, parents: tuple[str, ...]) -> t.DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return t.MapType(_value_type(key, parents), _value_type(value, parents))
    kind = _value_type(field, parents)
    return t.ArrayType(kind) if field.is_repeated else kind


def _value_type(field: Any, parents: tuple[str, ...]) -> t.DataType:
    message = field.message_type
    if message is None:
        return _KINDS[type_of(field)]
    if message.full_name == TIMESTAMP:
        return t.TimestampType()
    if is_wrapper(message):
        return _KINDS[type_of(message.fields_by_name["value"])]
    return _struct(message, parents)


def _same(left: Any, right: Any) -> bool:
    """Whether two types are equal, whatever may be NULL."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = (left.keys() | right.keys()) - {"nullable", "containsNull", "valueContainsNull", "metadata"}
        return all(key in left and key in right and _same(left[key], right[key]) for key in keys)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
