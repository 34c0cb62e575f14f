"""A record of a topic as a value, its conversion to one line of JSON and back, and as printable text. Pure."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.errors import BadRecord
from headrace.text import UNSAFE, json_text, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.kafka.headers import Headers

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LINE_BREAKS = re.compile(r"[\r\n\t]+ *")
_WHITESPACE = re.compile(r"[ \t\r\n]*")
_MAX_DIGITS = 300


@dataclass(frozen=True, slots=True)
class Record:
    """A record. `timestamp` is in milliseconds since the epoch; `timestamp_type` is the event it belongs to: create or
    append."""

    topic: str
    partition: int | None
    offset: int | None
    timestamp: int | None
    timestamp_type: str | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def place(self) -> str:
        partition = "?" if self.partition is None else self.partition
        return f"{self.topic}[{partition}] offset {'?' if self.offset is None else self.offset}"


def instant(milliseconds: int) -> str | int:
    """The time in ISO 8601. A number outside of the years 1 to 9999, such as microseconds, stays a number."""
    try:
        at = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return milliseconds
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(text: str) -> int:
    """The milliseconds of an ISO 8601 time, in UTC if it has no zone; ValueError if it is not a valid time."""
    at = datetime.fromisoformat(text)
    return round(((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) / timedelta(milliseconds=1))


def to_json(record: Record, *, parsed: bool = False, **extra: str) -> str:
    """A line of JSON. Bytes in UTF-8 are written as text, others as Base64 under names such as `value_base64`.

    `parsed`: the value is JSON, and is embedded as JSON instead of text. A JSON string or null is still written as
    text, to distinguish it from a text value and from a record without a value.
    """
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp is None else instant(record.timestamp),
        "timestamp_type": record.timestamp_type,
        **_bytes("key", record.key),
        "headers": [{"name": name, **_bytes("value", value)} for name, value in record.headers],
        **extra,
    }
    text = json_text(fields)
    if parsed and record.value is not None and record.value.lstrip()[:1] not in (b'"', b"n"):
        return f'{text[:-1]}, "value": {compact(record.value)}}}'
    return f"{text[:-1]}, {json_text(_bytes('value', record.value))[1:]}"


def _bytes(name: str, raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}


def is_record(fields: Mapping[str, Any]) -> bool:
    """Whether this object has the fields that `to_json` writes."""
    return {"topic", "partition", "offset", "timestamp"} <= fields.keys() and (
        "value" in fields or "value_base64" in fields
    )


def from_json(line: str, fields: Mapping[str, Any]) -> Record:
    """The record of a line that `to_json` wrote, with its decoded `fields`; BadRecord for any other line."""
    try:
        at = fields["timestamp"]
        return Record(
            topic=str(fields["topic"]),
            partition=_number(fields, "partition"),
            offset=_number(fields, "offset"),
            timestamp=milliseconds(at) if isinstance(at, str) else _number(fields, "timestamp"),
            timestamp_type=fields.get("timestamp_type"),
            key=_raw(fields, "key", line),
            value=_raw(fields, "value", line),
            headers=tuple((_name(header), _raw(header, "value")) for header in fields.get("headers") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRecord(f"not a record as `headrace consume --json` writes them: {error}") from error


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    found = fields[name]
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    raise TypeError(f"its {name} is {found!r}, not a number")


def _name(header: Mapping[str, Any]) -> str:
    if isinstance(header["name"], str):
        return header["name"]
    raise TypeError(f"a header is called {header['name']!r}")


def _raw(fields: Mapping[str, Any], name: str, line: str | None = None) -> bytes | None:
    """The bytes of a field. JSON other than a string is copied verbatim from the line: decoding would round numbers."""
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    span = None if line is None else value_span(line, [name])
    if line is None or span is None:
        raise TypeError(f"expected text in a header, got {value!r}")
    return line[slice(*span)].encode()


def parse_json(text: str, *, strict: bool = True) -> Any:
    """The decoded JSON; numbers may lose digits. ValueError if it is not valid JSON; NaN is valid unless `strict`."""
    try:
        return (_STRICT if strict else _LENIENT).decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def value_span(text: str, path: Sequence[str]) -> tuple[int, int] | None:
    """The start and end, in a text that is JSON, of the value at `path`; if a name occurs twice, of the last one."""
    begin = _skip_whitespace(text, 0)
    found: tuple[int, int] | None = (begin, len(text))
    for name in path:
        if found is None or text[found[0]] != "{":
            return None
        found = dict(_members(text, found[0])).get(name)
    return found


def _members(text: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    at = _skip_whitespace(text, at + 1)
    while text[at] != "}":
        name, at = _LENIENT.raw_decode(text, at)
        begin = _skip_whitespace(text, _skip_whitespace(text, at) + 1)
        _, end = _LENIENT.raw_decode(text, begin)
        yield name, (begin, end)
        at = _skip_whitespace(text, end)
        at = _skip_whitespace(text, at + 1) if text[at] == "," else at


def _skip_whitespace(text: str, at: int) -> int:
    found = _WHITESPACE.match(text, at)
    return at if found is None else found.end()


def compact(raw: bytes) -> str:
    """JSON on one line, with its numbers unchanged; ValueError if it is not valid JSON."""
    text = raw.decode()
    parse_json(text)
    # A JSON string contains no line break, so every line break is white space between tokens.
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", _LINE_BREAKS.sub(" ", text).strip())


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)  # Python refuses to read very long ones


_STRICT = json.JSONDecoder(parse_int=_parse_int, parse_constant=_no_constant)
_LENIENT = json.JSONDecoder(parse_int=_parse_int)


def to_printable(raw: bytes) -> str:
    """Printable text on one line: control characters and bytes that are not UTF-8 are escaped."""
    return printable(raw.decode(errors="backslashreplace"))


DECODERS: Mapping[str, Callable[[bytes], str]] = {
    "text": to_printable,
    "json": compact,
    "hex": bytes.hex,
    "base64": lambda raw: base64.b64encode(raw).decode(),
}


def _json_line(raw: bytes) -> bytes:
    parse_json(raw.decode())
    return raw


def _hex(raw: bytes) -> bytes:
    return bytes.fromhex(raw.decode("ascii"))


def _base64(raw: bytes) -> bytes:
    return base64.b64decode(raw, validate=True)


ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "text": lambda raw: raw,
    "json": _json_line,
    "hex": _hex,
    "base64": _base64,
}
"""The bytes that a line encodes; ValueError (such as binascii.Error) if it is not in this encoding."""
