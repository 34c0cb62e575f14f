"""Encodes JSON values as Avro without Spark, for `headrace produce --avro`.

Own code, because no dependency can do it. Unions are untagged: the first branch that accepts the value is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

from headrace.errors import ConfigError
from headrace.formats.zigzag import encode_zigzag

Write = Callable[[Any], bytes]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDS = {"int": 1 << 31, "long": 1 << 63}
_TIMES = {
    "date": 86_400_000_000,
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}
"""Logical types that may be given as ISO 8601 text, with their unit in microseconds."""


def encoder(schema: str) -> Callable[[bytes], bytes]:
    """A function from JSON text to Avro bytes; it raises ValueError for values that the schema does not allow."""
    write = _Writers().of(json.loads(schema))
    return lambda text: write(json.loads(text))


class _Writers:
    """Builds an encode function for each type of a schema; named types are kept by name."""

    def __init__(self) -> None:
        self._named: dict[str, Write] = {}

    def of(self, schema: Any, space: str = "") -> Write:
        if isinstance(schema, list):
            return partial(_union, [(self.of(branch, space), branch) for branch in schema])
        if isinstance(schema, str):
            return self._plain(schema, space)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise ConfigError(f"expected an Avro type, got {schema!r}", hint="correct the .avsc file")
        match schema["type"]:
            case "record" | "error":
                return self._record(schema, space)
            case "enum":
                return self._remember(schema, space, partial(_enum, schema["symbols"]))
            case "fixed":
                return self._remember(schema, space, partial(_fixed, schema["size"]))
            case "array":
                return partial(_array, self.of(schema["items"], space))
            case "map":
                return partial(_map, self.of(schema["values"], space))
            case "int" | "long" if schema.get("logicalType") in _TIMES:
                return partial(_time, schema["type"], schema["logicalType"])
            case "bytes" if schema.get("logicalType") == "decimal":
                raise ConfigError("decimals of Avro cannot be written from JSON lines", hint="a pipeline writes them")
            case other:
                return self.of(other, space)

    def _plain(self, name: str, space: str) -> Write:
        if name in _SIMPLE:
            return _SIMPLE[name]
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._named and name not in self._named:
            raise ConfigError(
                f"the Avro schema uses the type {name} before its definition", hint="define it at its first use"
            )
        return self._named[full if full in self._named else name]

    def _remember(self, schema: Mapping[str, Any], space: str, write: Write) -> Write:
        name = str(schema["name"])
        inner = schema.get("namespace", space)
        self._named[name if "." in name or not inner else f"{inner}.{name}"] = write
        return write

    def _record(self, schema: Mapping[str, Any], space: str) -> Write:
        fields: list[tuple[Mapping[str, Any], Write]] = []
        write = self._remember(schema, space, partial(_record, fields))
        inner = schema.get("namespace", str(schema["name"]).rpartition(".")[0] or space)
        fields += [(field, self.of(field["type"], inner)) for field in schema["fields"]]
        return write


def _record(fields: list[tuple[Mapping[str, Any], Write]], value: Any) -> bytes:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {_shorten(value)}")
    if unknown := sorted(set(value) - {field["name"] for field, _ in fields}):
        raise ValueError(f"the schema has no field {unknown[0]}")
    encoded = []
    for field, write in fields:
        name = field["name"]
        if name not in value and "default" not in field:
            raise ValueError(f"the field {name} is missing")
        try:
            encoded.append(write(value.get(name, field.get("default"))))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return b"".join(encoded)


def _union(branches: list[tuple[Write, Any]], value: Any) -> bytes:
    for number, (write, _) in enumerate(branches):
        try:
            return _number("long", number) + write(value)
        except ValueError:
            continue
    raise ValueError(f"expected one of {json.dumps([branch for _, branch in branches])}, got {_shorten(value)}")


def _number(kind: str, value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected {kind}, got {_shorten(value)}")
    if not -_BOUNDS[kind] <= value < _BOUNDS[kind]:
        raise ValueError(f"{value} does not fit {kind}")
    return encode_zigzag(value)


def _time(kind: str, logical: str, value: Any) -> bytes:
    if isinstance(value, str):
        found = date.fromisoformat(value) if logical == "date" else datetime.fromisoformat(value)
        moment = found if isinstance(found, datetime) else datetime(found.year, found.month, found.day)
        since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        value = micros // _TIMES[logical]
    return _number(kind, value)


def _real(layout: str, value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {_shorten(value)}")
    try:
        return struct.pack(layout, value)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {_shorten(value)}")
    return _with_length(value.encode())


def _raw(value: Any) -> bytes:
    """As in Avro's JSON encoding: each character is a byte."""
    if not isinstance(value, str):
        raise ValueError(f"expected a string of bytes, got {_shorten(value)}")
    return value.encode("latin-1")


def _with_length(raw: bytes) -> bytes:
    return _number("long", len(raw)) + raw


def _fixed(size: int, value: Any) -> bytes:
    raw = _raw(value)
    if len(raw) != size:
        raise ValueError(f"expected {size} bytes, got {len(raw)}")
    return raw


def _enum(symbols: list[str], value: Any) -> bytes:
    if value not in symbols:
        raise ValueError(f"expected one of {', '.join(symbols)}, got {_shorten(value)}")
    return _number("int", symbols.index(value))


def _array(write: Write, value: Any) -> bytes:
    if not isinstance(value, list):
        raise ValueError(f"expected an array, got {_shorten(value)}")
    return _block(len(value), b"".join(write(item) for item in value))


def _map(write: Write, value: Any) -> bytes:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {_shorten(value)}")
    return _block(len(value), b"".join(_text(name) + write(item) for name, item in value.items()))


def _block(count: int, items: bytes) -> bytes:
    return (_number("long", count) + items if count else b"") + b"\0"


def _exactly(kinds: dict[Any, bytes], what: str, value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        for known, encoded in kinds.items():
            if value is known:
                return encoded
    raise ValueError(f"expected {what}, got {_shorten(value)}")


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_SIMPLE: dict[str, Write] = {
    "null": partial(_exactly, {None: b""}, "null"),
    "boolean": partial(_exactly, {False: b"\0", True: b"\1"}, "a boolean"),
    "int": partial(_number, "int"),
    "long": partial(_number, "long"),
    "float": partial(_real, "<f"),
    "double": partial(_real, "<d"),
    "string": _text,
    "bytes": lambda value: _with_length(_raw(value)),
}
