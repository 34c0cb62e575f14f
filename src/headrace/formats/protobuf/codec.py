"""Decodes Protobuf messages to Arrow and encodes rows, with Google's library for Python.

Not with Spark's from_protobuf: its jar is not in all of the repositories that the other jars come from.
"""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_type

from headrace.formats.protobuf.descriptors import library
from headrace.formats.protobuf.types import TIMESTAMP, WIDE, is_map, is_wrapper, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.formats.protobuf.types import Messages

    Read = Callable[[Any], Any]


def decoder(messages: Messages, *, framed: bool) -> Callable[[Any], tuple[Any, Any]]:
    """A function from bytes to rows, and to the reasons why records are bad."""
    row = messages.row()
    kinds = [to_arrow_type(field.dataType, timezone="UTC") for field in row.fields]
    index = messages.message_index()

    def call(values: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        malformed = library("message").DecodeError
        parse, check = messages.message_class.FromString, _type_check(messages.type)
        reads = [_reader(field) for field in messages.type.fields]
        found: list[Any] = []
        errors: list[str | None] = []
        for value in values.to_pylist():
            fields, error = None, None
            if value is not None:
                try:
                    message = parse(_body(value, index) if framed else value)
                    if not message.IsInitialized():
                        raise ValueError("a required field is missing")
                    check(message)
                    fields = [read(message) for read in reads]
                except malformed:
                    error = f"not a valid {messages.name} message"
                except ValueError as failure:
                    error = f"not a valid {messages.name} message: {failure}"
            found.append(fields)
            errors.append(error)
        arrays = [
            pa.array([None if fields is None else fields[number] for fields in found], kind)
            for number, kind in enumerate(kinds)
        ]
        is_null = pa.array([fields is None for fields in found], pa.bool_())
        rows = pa.StructArray.from_arrays(arrays, names=row.fieldNames(), mask=is_null)
        return rows, pa.array(errors, pa.string())

    return call


def encoder(messages: Messages) -> Callable[[Any], Any]:
    """A function from rows to bytes, or to the reason why a row cannot be encoded."""

    def call(rows: Any) -> Any:
        import pyarrow as pa

        malformed = library("message").EncodeError
        values: list[bytes | None] = []
        errors: list[str | None] = []
        for row in rows.to_pylist():
            value, error = None, None
            try:
                value = _fill_message(messages.message_class(), row, messages.type).SerializeToString()
            except (malformed, ValueError, TypeError) as failure:
                error = f"cannot encode the row as {messages.name}: {failure}"
            values.append(value)
            errors.append(error)
        return pa.StructArray.from_arrays(
            [pa.array(values, pa.binary()), pa.array(errors, pa.string())], names=["value", "error"]
        )

    return call


def _reader(field: Any) -> Read:
    """A function from a message to the value of one field; NULL for an absent one if the field has presence."""
    name, read = field.name, _value_reader(field)
    if is_map(field):
        key, value = (_value_reader(field.message_type.fields_by_name[part]) for part in ("key", "value"))
        return lambda message: [(key(k), value(v)) for k, v in getattr(message, name).items()]
    if field.is_repeated:
        return lambda message: [read(item) for item in getattr(message, name)]
    if field.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _type_check(kind: Any) -> Callable[[Any], None]:
    """A check: ValueError if a field has another type than described, which the library treats as an unknown field."""
    unknown, known = library("unknown_fields").UnknownFieldSet, kind.fields_by_number

    def call(message: Any) -> None:
        for field in unknown(message):
            if field.field_number in known:
                raise ValueError(f"the field {known[field.field_number].name} is of another type")

    return call


def _with_type_check(kind: Any, read: Read) -> Read:
    check = _type_check(kind)

    def call(value: Any) -> Any:
        check(value)
        return read(value)

    return call


def _value_reader(field: Any) -> Read:
    message = field.message_type
    if message is None:
        if type_of(field) == "ENUM":
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, str(number))
        return Decimal if type_of(field) in WIDE else _unchanged
    if message.full_name == TIMESTAMP:
        return _with_type_check(message, lambda value: value.ToDatetime(tzinfo=UTC))
    if is_wrapper(message):
        inner = _value_reader(message.fields_by_name["value"])
        return _with_type_check(message, lambda value: inner(value.value))
    reads = [(inner.name, _reader(inner)) for inner in message.fields]
    return _with_type_check(message, lambda value: {name: read(value) for name, read in reads})


def _fill_message(message: Any, row: Mapping[str, Any] | None, kind: Any) -> Any:
    """Set the fields of a message from a row; NULLs are left out."""
    for name, value in (row or {}).items():
        if value is None:
            continue
        field = kind.fields_by_name[name]
        if is_map(field):
            key_field, inner = (field.message_type.fields_by_name[part] for part in ("key", "value"))
            for map_key, item in value:
                key = _scalar(key_field, map_key)
                if inner.message_type is None:
                    getattr(message, name)[key] = _scalar(inner, _not_null(item, name))
                else:
                    _fill(getattr(message, name)[key], _not_null(item, name), inner.message_type)
        elif field.is_repeated:
            for item in value:
                if field.message_type is None:
                    getattr(message, name).append(_scalar(field, _not_null(item, name)))
                else:
                    _fill(getattr(message, name).add(), _not_null(item, name), field.message_type)
        elif field.message_type is None:
            setattr(message, name, _scalar(field, value))
        else:
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value, field.message_type)
    return message


def _not_null(item: Any, name: str) -> Any:
    if item is None:
        raise ValueError(f"{name} contains a NULL, which Protobuf does not allow")
    return item


def _fill(message: Any, value: Any, kind: Any) -> None:
    if kind.full_name == TIMESTAMP:
        message.FromDatetime(value)
    elif is_wrapper(kind):
        message.value = _scalar(kind.fields_by_name["value"], value)
    else:
        _fill_message(message, value, kind)


def _scalar(field: Any, value: Any) -> Any:
    if type_of(field) == "ENUM":
        known = field.enum_type.values_by_name
        if value not in known and not value.removeprefix("-").isdecimal():
            raise ValueError(f"{field.name} has no value {value!r}")
        return known[value].number if value in known else int(value)
    return int(value) if type_of(field) in WIDE else value


def _body(value: bytes, index: bytes) -> bytes:
    """The message after the header of a registry's wire format."""
    if len(value) < 5 or value[0] != 0:
        raise ValueError("not in the wire format of a schema registry")
    if index == b"\0" and value[5:7] == b"\2\0":  # the first message of a file, as an explicit path
        return value[7:]
    if value[5 : 5 + len(index)] != index:
        raise ValueError("it is another message of its schema")
    return value[5 + len(index) :]


def _unchanged(value: Any) -> Any:
    return value
