"""The types of Protobuf, and the columns that they become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from headrace.errors import ConfigError
from headrace.formats.protobuf.descriptors import build_descriptors, library

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMESTAMP = "google.protobuf.Timestamp"
# Unsigned numbers get a type that holds them all.
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
    """The messages of one type. Goes to the executors as bytes, and is built there once per process."""

    def __init__(self, name: str, descriptor: bytes) -> None:
        self.name, self.descriptor = name, descriptor
        self.type, _ = build_descriptors(name, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return Messages, (self.name, self.descriptor)

    @property
    def make(self) -> Any:
        """The class of such messages; a field of an enum that knows no other numbers than its own is a number there."""
        return build_descriptors(self.name, self.descriptor)[1]

    def row(self) -> t.StructType:
        """The columns. ConfigError for a message that contains itself."""
        return _struct(self.type, ())

    def place(self) -> bytes:
        """Where the message stands in its file, as a registry's wire format has it."""
        path, here = [], self.type
        while here is not None:
            above = here.containing_type
            beside = here.file.message_types_by_name if above is None else above.nested_types_by_name
            path.append(list(beside).index(here.name))
            here = above
        if path == [0]:
            return b"\0"
        return b"".join(_varint(number) for number in (len(path), *reversed(path)))

    def check(self, columns: Mapping[str, Any]) -> None:
        """ConfigError if rows of these columns cannot become such messages."""
        known = {field.name: field.dataType.jsonValue() for field in self.row().fields}
        for name, kind in columns.items():
            if name not in known:
                raise ConfigError(
                    f"the message {self.name} has no field {name}", hint=f"it has: {', '.join(known)}; select those"
                )
            if not _same(kind, known[name]):
                shown = self.row()[name].dataType.simpleString()
                raise ConfigError(
                    f"the column {name} does not fit the field of {self.name}, which is {shown.upper()}",
                    hint=f"CAST({name} AS {shown.upper()}) in the transform",
                )


def is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_wrapper(message: Any) -> bool:
    return bool(message.file.name == "google/protobuf/wrappers.proto")


def type_of(field: Any) -> str:
    return str(library("descriptor_pb2").FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def _struct(message: Any, above: tuple[str, ...]) -> t.StructType:
    if message.full_name in above:
        raise ConfigError(
            f"the message {message.full_name} contains itself, and columns cannot",
            hint="read hr.Bytes(), and decode it in the transform",
        )
    inside = (*above, message.full_name)
    return t.StructType([t.StructField(field.name, _kind(field, inside)) for field in message.fields])


def _kind(field: Any, above: tuple[str, ...]) -> t.DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return t.MapType(_one_kind(key, above), _one_kind(value, above))
    kind = _one_kind(field, above)
    return t.ArrayType(kind) if field.is_repeated else kind


def _one_kind(field: Any, above: tuple[str, ...]) -> t.DataType:
    message = field.message_type
    if message is None:
        return _KINDS[type_of(field)]
    if message.full_name == TIMESTAMP:
        return t.TimestampType()
    if is_wrapper(message):
        return _KINDS[type_of(message.fields_by_name["value"])]
    return _struct(message, above)


def _same(kind: Any, meant: Any) -> bool:
    """Whether two types are one, but for what may be NULL."""
    if isinstance(kind, dict) and isinstance(meant, dict):
        left, right = (
            {k: v for k, v in one.items() if k not in ("nullable", "containsNull", "valueContainsNull", "metadata")}
            for one in (kind, meant)
        )
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(kind, list) and isinstance(meant, list):
        return len(kind) == len(meant) and all(map(_same, kind, meant))
    return bool(kind == meant)


def _varint(number: int) -> bytes:
    left, made = number << 1, bytearray()
    while left >= 0x80:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])
