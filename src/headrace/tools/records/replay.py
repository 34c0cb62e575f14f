"""Recorded records and their times: the order, schedule and new timestamps of a replay. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from headrace.errors import BadRecord, ConfigError
from headrace.tools.records.record import Record, from_json, instant, is_record, parse_json, value_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Until the year 5138 a number of seconds has at most eleven digits; since 1973 one of milliseconds has more; and so on.
_SCALES = ((10**11, 1), (10**14, 1_000), (10**17, 1_000_000), (10**20, 1_000_000_000))
_TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d(?::\d\d(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True, slots=True)
class EventTime:
    """A time: in milliseconds since the epoch, and the text or number as it was written."""

    milliseconds: float
    written: str | int | float

    @classmethod
    def read(cls, written: Any) -> EventTime:
        """Parse a time; ValueError if it is not a valid one."""
        if isinstance(written, bool) or written is None:
            raise ValueError(f"expected a time, got {written!r}")
        if isinstance(written, int | float):
            return cls(written * 1000 / _scale(written), written)
        if isinstance(written, str) and _TIME_TEXT.fullmatch(written):
            return cls(_to_datetime(written).timestamp() * 1000, written)
        raise ValueError(f"expected a time, got {written!r}")

    def shifted(self, milliseconds: float) -> str | int | float:
        """The time shifted by so much, written in the same way."""
        if isinstance(self.written, str):
            return _shift_text(self.written, milliseconds)
        by = milliseconds / 1000 * _scale(self.written)
        return self.written + (round(by) if isinstance(self.written, int) else by)


def _scale(number: float) -> int:
    """The number of its units per second."""
    for limit, scale in _SCALES:
        if abs(number) < limit:
            return scale
    raise ValueError(f"expected a time, got {number!r}")


def _to_datetime(text: str) -> datetime:
    found = _TIME_TEXT.fullmatch(text)
    fraction = found[2] if found else None
    if fraction and len(fraction) > 6:  # Python has microseconds
        text = text.replace(f".{fraction}", f".{fraction[:6]}", 1)
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _shift_text(text: str, milliseconds: float) -> str:
    found = _TIME_TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a time, got {text!r}")
    at = _to_datetime(text) + timedelta(milliseconds=milliseconds)
    seconds = text.count(":", 0, len(text) - len(found[3] or "")) == 2
    shifted_text = f"{at:%Y-%m-%d}{found[1]}{at:%H:%M:%S}" if seconds else f"{at:%Y-%m-%d}{found[1]}{at:%H:%M}"
    if found[2]:
        shifted_text += "." + f"{at.microsecond:06}000"[: len(found[2])]
    return shifted_text + (found[3] or "")


@dataclass(frozen=True, slots=True)
class TimedRecord:
    """A line as a record, and its event time if it has one."""

    record: Record
    at: EventTime | None


def timed_record(line: bytes, field: str | None, key: str | None) -> TimedRecord:
    """Parse a line that `headrace consume --json` wrote, or any JSON object; BadRecord for any other line.

    `field` is the field of the value with the event time; without it the record's timestamp counts. `key` is the field
    of a plain object that becomes its key. Both may be paths, such as `event.at`. A tombstone has no fields, so its
    timestamp counts.
    """
    try:
        text = line.decode("utf-8-sig").strip()
        fields = parse_json(text, strict=False)
    except ValueError as error:
        raise BadRecord(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRecord("not a JSON object")
    if key is not None and is_record(fields):
        raise BadRecord(f"a record of `headrace consume --json` has its own key; --key {key} is for other objects")
    record = from_json(text, fields) if is_record(fields) else _record_of_object(text, fields, key)
    if field is None or record.value is None:
        at = None if record.timestamp is None else EventTime(record.timestamp, record.timestamp)
        return TimedRecord(record, at)
    try:
        at = EventTime.read(_get_path(parse_json(record.value.decode(), strict=False), field))
    except ValueError as error:
        raise BadRecord(f"no time at {field}: {error}") from error
    stamped = record if record.timestamp is not None else replace(record, timestamp=round(at.milliseconds))
    return TimedRecord(stamped, at)


def _record_of_object(text: str, fields: dict[str, Any], key: str | None) -> Record:
    found = _get_path(fields, key) if key else None
    if key and found is not None and not isinstance(found, str):
        span = value_span(text, key.split("."))
        found = None if span is None else text[slice(*span)]
    try:
        return Record("", None, None, None, None, None if found is None else found.encode(), text.encode())
    except UnicodeEncodeError as error:  # half a character, which JSON can escape
        raise BadRecord(f"no key at {key}: {error}") from error


def _get_path(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def in_order(lines: Iterable[tuple[tuple[str, int | None], float | None]]) -> list[tuple[int, float]]:
    """The line numbers and times in the order to send them; each line is given by its partition and time.

    Lines are ordered by time, but the order within a partition is kept, whatever the times are. A line without a time
    gets the time of the previous one of its partition.
    """
    latest: dict[tuple[str, int | None], float] = {}
    found = []
    for number, (partition, at) in enumerate(lines):
        before = latest.get(partition)
        time = max(at if at is not None else float("-inf"), before if before is not None else float("-inf"))
        latest[partition] = time
        found.append((number, time))
    return sorted(found, key=lambda entry: entry[1])


def shift(times: Sequence[float], factor: float | None, now: float) -> float:
    """How far to shift all times: as late as possible, but no record may be sent before its time, which brokers reject.

    At the original speed or slower, the first record gets the current time; faster, the last one gets the time at which
    it is sent.
    """
    if not times:
        return 0.0
    first, last = min(times), max(times)
    if factor is not None and factor <= 1:
        return now - first
    return now + (0.0 if factor is None else (last - first) / factor) - last


def shifted(given: TimedRecord, milliseconds: float, field: str | None, now: float = float("inf")) -> Record:
    """The record with its timestamp, and the time in its field `field`, shifted by so much. The field keeps its
    notation, and the rest of the value stays the same byte for byte. BadRecord if the field has no valid time.

    A timestamp that would be later than `now` becomes `now`: it may be much later than the time in the field.
    """
    record = given.record
    if record.timestamp is not None:
        later = record.timestamp + round(milliseconds)
        record = replace(record, timestamp=later if field is None or later < now else round(now))
    if field is None or given.at is None or record.value is None:
        return record
    text = record.value.decode()
    span = value_span(text, field.split("."))
    if span is None:
        raise BadRecord(f"no time at {field}")
    begin, end = span
    try:
        new_time = _shift_token(text[begin:end], given.at, milliseconds)
    except OverflowError as error:
        raise BadRecord(f"{text[begin:end]} cannot be shifted: {error}") from error
    return replace(record, value=f"{text[:begin]}{new_time}{text[end:]}".encode())


def _shift_token(written: str, at: EventTime, milliseconds: float) -> str:
    """The shifted time as JSON; a fraction keeps its number of digits, up to nine."""
    if not isinstance(at.written, float):
        return json.dumps(at.shifted(milliseconds), ensure_ascii=False)
    number = Decimal(written)
    later = number + Decimal(milliseconds) * _scale(at.written) / 1000
    digits = len(written.partition(".")[2]) if "e" not in written.lower() else 0
    return format(later.quantize(Decimal(1).scaleb(-min(digits, 9)), context=Context(prec=60)), "f")


def speed(text: str) -> float | None:
    """Parse a speed: `60x` is 60, `max` is None."""
    if text == "max":
        return None
    try:
        found = float(text.removesuffix("x"))
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConfigError(
            f"--speed: expected a factor or max, got {text!r}", hint="--speed 60x, --speed 0.5x or --speed max"
        )
    return found


def span(times: Sequence[float]) -> str:
    """The first and last time, as text."""
    return f"{instant(round(min(times)))} to {instant(round(max(times)))}" if times else "without times"
