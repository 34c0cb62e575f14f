"""Protobuf messages to Arrow and back, by Google's library for Python.

Not by Spark's from_protobuf: its jar is not where the other jars come from.
"""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from headrace.errors import ConfigError
from headrace.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Read = Callable[[Any], Any]

_TIMESTAMP = "google.protobuf.Timestamp"
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
_WIDE = ("UINT64", "FIXED64")


class Messages:
    """The messages of one type. Goes to the executors as bytes, and is built there once per process."""

    def __init__(self, name: str, descriptor: bytes) -> None:
        self.name, self.descriptor = name, descriptor
        self.type, _ = _built(name, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return Messages, (self.name, self.descriptor)

    @property
    def make(self) -> Any:
        """The class of such messages; a field of an enum that knows no other numbers than its own is a number there."""
        return _built(self.name, self.descriptor)[1]

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


def decoder(messages: Messages, *, framed: bool) -> Callable[[Any], tuple[Any, Any]]:
    """From bytes to rows, and why records are bad."""
    row = messages.row()
    kinds = [to_arrow_type(field.dataType, timezone="UTC") for field in row.fields]
    place = messages.place()

    def call(values: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        malformed = _library("message").DecodeError
        parse, check = messages.make.FromString, _check(messages.type)
        reads = [_reader(field) for field in messages.type.fields]
        found: list[Any] = []
        errors: list[str | None] = []
        for value in values.to_pylist():
            fields, error = None, None
            if value is not None:
                try:
                    message = parse(_body(value, place) if framed else value)
                    if not message.IsInitialized():
                        raise ValueError("a required field is missing")
                    check(message)
                    fields = [read(message) for read in reads]
                except malformed:
                    error = f"no message {messages.name}"
                except ValueError as failure:
                    error = f"no message {messages.name}: {failure}"
            found.append(fields)
            errors.append(error)
        arrays = [
            pa.array([None if fields is None else fields[number] for fields in found], kind)
            for number, kind in enumerate(kinds)
        ]
        nothing = pa.array([fields is None for fields in found], pa.bool_())
        rows = pa.StructArray.from_arrays(arrays, names=row.fieldNames(), mask=nothing)
        return rows, pa.array(errors, pa.string())

    return call


def encoder(messages: Messages) -> Callable[[Any], Any]:
    """From rows to bytes, or to why a row has none."""

    def call(rows: Any) -> Any:
        import pyarrow as pa

        malformed = _library("message").EncodeError
        values: list[bytes | None] = []
        errors: list[str | None] = []
        for row in rows.to_pylist():
            value, error = None, None
            try:
                value = _filled(messages.make(), row, messages.type).SerializeToString()
            except (malformed, ValueError, TypeError) as failure:
                error = f"no message {messages.name} can be made of a row: {failure}"
            values.append(value)
            errors.append(error)
        return pa.StructArray.from_arrays(
            [pa.array(values, pa.binary()), pa.array(errors, pa.string())], names=["value", "error"]
        )

    return call


_BUILT: dict[tuple[str, bytes], tuple[Any, Any]] = {}


def _built(name: str, descriptor: bytes) -> tuple[Any, Any]:
    """The descriptor of a message, and its class."""
    if (name, descriptor) not in _BUILT:
        pool, numbers = (_library("descriptor_pool").DescriptorPool() for _ in range(2))
        try:
            described = _library("descriptor_pb2").FileDescriptorSet.FromString(descriptor)
            files = {file.name: file for file in described.file}
            for file in files.values():
                _add(pool, file, files)
            found = pool.FindMessageTypeByName(name)
            opened = {file.name: _opened(file, pool) for file in files.values()}
            for file in opened.values():
                _add(numbers, file, opened)
        except (_library("message").DecodeError, TypeError) as error:
            raise ConfigError(
                f"the descriptor of {name} cannot be used: {error}",
                hint="protoc --include_imports --descriptor_set_out=<file> <name>.proto",
            ) from error
        except KeyError as error:
            there = [f"{f.package}.{m.name}".lstrip(".") for f in files.values() for m in f.message_type]
            raise ConfigError(
                f"the descriptor has no message {name}", hint=f"it has: {', '.join(sorted(there)) or 'none'}"
            ) from error
        made = _library("message_factory").GetMessageClass(numbers.FindMessageTypeByName(name))
        _BUILT[name, descriptor] = found, made
    return _BUILT[name, descriptor]


def _opened(file: Any, pool: Any) -> Any:
    """The same file with plain numbers for enums that are closed, as those of proto2 are.

    Google's library passes over a number that such an enum does not have, and in a list over its place.
    """
    made = type(file).FromString(file.SerializeToString())
    enum = _library("descriptor_pb2").FieldDescriptorProto.TYPE_ENUM
    waiting = list(made.message_type)
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        for field in message.field:
            if field.type == enum and pool.FindEnumTypeByName(field.type_name.lstrip(".")).is_closed:
                field.type = _library("descriptor_pb2").FieldDescriptorProto.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")
    return made


def _add(pool: Any, file: Any, files: Mapping[str, Any]) -> None:
    """A file, after those that it imports. Protobuf's own need not be in the set."""
    try:
        pool.FindFileByName(file.name)
        return
    except KeyError:
        pass
    for needed in file.dependency:
        if needed not in files and needed.startswith("google/protobuf/"):
            files = {**files, needed: _shipped(needed)}
        if needed in files:
            _add(pool, files[needed], files)
    pool.AddSerializedFile(file.SerializeToString())


def _shipped(name: str) -> Any:
    module = _library(name.removeprefix("google/protobuf/").removesuffix(".proto").replace("/", ".") + "_pb2")
    return _library("descriptor_pb2").FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _library(module: str) -> Any:
    return require(f"google.protobuf.{module}", extra="protobuf")


def _struct(message: Any, above: tuple[str, ...]) -> t.StructType:
    if message.full_name in above:
        raise ConfigError(
            f"the message {message.full_name} contains itself, and columns cannot",
            hint="read hr.Bytes(), and decode it in the transform",
        )
    inside = (*above, message.full_name)
    return t.StructType([t.StructField(field.name, _kind(field, inside)) for field in message.fields])


def _kind(field: Any, above: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return t.MapType(_one_kind(key, above), _one_kind(value, above))
    kind = _one_kind(field, above)
    return t.ArrayType(kind) if field.is_repeated else kind


def _one_kind(field: Any, above: tuple[str, ...]) -> t.DataType:
    message = field.message_type
    if message is None:
        return _KINDS[_type(field)]
    if message.full_name == _TIMESTAMP:
        return t.TimestampType()
    if _is_wrapper(message):
        return _KINDS[_type(message.fields_by_name["value"])]
    return _struct(message, above)


def _reader(field: Any) -> Read:
    """From a message to the value of one field; NULL for one that is not there, where that can be told."""
    name, one = field.name, _one_reader(field)
    if _is_map(field):
        key, value = (_one_reader(field.message_type.fields_by_name[part]) for part in ("key", "value"))
        return lambda message: [(key(k), value(v)) for k, v in getattr(message, name).items()]
    if field.is_repeated:
        return lambda message: [one(item) for item in getattr(message, name)]
    if field.has_presence:
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    return lambda message: one(getattr(message, name))


def _check(kind: Any) -> Callable[[Any], None]:
    """ValueError if a message has a field of another type than it should: the library takes that for an unknown one."""
    unknown, known = _library("unknown_fields").UnknownFieldSet, kind.fields_by_number

    def call(message: Any) -> None:
        for field in unknown(message):
            if field.field_number in known:
                raise ValueError(f"the field {known[field.field_number].name} is of another type")

    return call


def _checked(kind: Any, read: Read) -> Read:
    check = _check(kind)

    def call(value: Any) -> Any:
        check(value)
        return read(value)

    return call


def _one_reader(field: Any) -> Read:
    message = field.message_type
    if message is None:
        if _type(field) == "ENUM":
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, str(number))
        return Decimal if _type(field) in _WIDE else _same_value
    if message.full_name == _TIMESTAMP:
        return _checked(message, lambda value: value.ToDatetime(tzinfo=UTC))
    if _is_wrapper(message):
        inner = _one_reader(message.fields_by_name["value"])
        return _checked(message, lambda value: inner(value.value))
    reads = [(inner.name, _reader(inner)) for inner in message.fields]
    return _checked(message, lambda value: {name: read(value) for name, read in reads})


def _filled(message: Any, row: Mapping[str, Any] | None, kind: Any) -> Any:
    """A message with the fields of a row; NULLs are left out."""
    for name, value in (row or {}).items():
        if value is None:
            continue
        field = kind.fields_by_name[name]
        if _is_map(field):
            of, inner = (field.message_type.fields_by_name[part] for part in ("key", "value"))
            for given, item in value:
                key = _scalar(of, given)
                if inner.message_type is None:
                    getattr(message, name)[key] = _scalar(inner, _there(item, name))
                else:
                    _fill(getattr(message, name)[key], _there(item, name), inner.message_type)
        elif field.is_repeated:
            for item in value:
                if field.message_type is None:
                    getattr(message, name).append(_scalar(field, _there(item, name)))
                else:
                    _fill(getattr(message, name).add(), _there(item, name), field.message_type)
        elif field.message_type is None:
            setattr(message, name, _scalar(field, value))
        else:
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value, field.message_type)
    return message


def _there(item: Any, name: str) -> Any:
    if item is None:
        raise ValueError(f"{name} has a NULL in it, which Protobuf does not have")
    return item


def _fill(message: Any, value: Any, kind: Any) -> None:
    if kind.full_name == _TIMESTAMP:
        message.FromDatetime(value)
    elif _is_wrapper(kind):
        message.value = _scalar(kind.fields_by_name["value"], value)
    else:
        _filled(message, value, kind)


def _scalar(field: Any, value: Any) -> Any:
    if _type(field) == "ENUM":
        known = field.enum_type.values_by_name
        if value not in known and not value.removeprefix("-").isdecimal():
            raise ValueError(f"{field.name} has no value {value!r}")
        return known[value].number if value in known else int(value)
    return int(value) if _type(field) in _WIDE else value


def _body(value: bytes, place: bytes) -> bytes:
    """What follows the head of a registry's wire format."""
    if len(value) < 5 or value[0] != 0:
        raise ValueError("not in the wire format of a schema registry")
    if place == b"\0" and value[5:7] == b"\2\0":  # the first message of a file, written out
        return value[7:]
    if value[5 : 5 + len(place)] != place:
        raise ValueError("it is another message of its schema")
    return value[5 + len(place) :]


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


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_wrapper(message: Any) -> bool:
    return bool(message.file.name == "google/protobuf/wrappers.proto")


def _type(field: Any) -> str:
    return str(_library("descriptor_pb2").FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def _varint(number: int) -> bytes:
    left, made = number << 1, bytearray()
    while left >= 0x80:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])


def _same_value(value: Any) -> Any:
    return value
