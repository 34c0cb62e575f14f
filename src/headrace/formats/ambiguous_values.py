"""Finds texts that Spark reads as a wrong number or time: by a fast pattern first, then by an exact check.

For a DECIMAL Spark drops commas ("1,5" is 15) and needs minutes for 1e400000000. For a TIMESTAMP it reads "12:30" as a
time of today.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.formats.nested_conditions import any_nested
from headrace.spark.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

_DAY = 86_400
_PLAIN = re.compile(r"[A-Za-z0-9_ -]+")
_MAX_NAMES = 3
"""Maximum fields with a pattern each: for more fields a single pattern is faster."""


@dataclass(frozen=True, slots=True)
class AmbiguousType:
    """Patterns for the values of one type. An ambiguous value may be valid; a `wrong` one is not."""

    kind: str
    """The prefix of the Spark type's name."""
    after: str
    """A pattern for the text after the name of a field in JSON whose value is ambiguous."""
    anywhere: str
    """The same without a preceding name."""
    wrong: str
    """A pattern for a wrong value in a text with one value per line."""


DECIMALS = AmbiguousType(
    "decimal",
    after=r'\s*:\s*(?:"[^"]*[,\\]|"?[-+.\d]*[eE][-+]?\d{4})',
    anywhere=r'[eE][-+]?\d{4}|"[-+.\d\\][^"]*[,\\]|"[-+]?,\d',
    wrong=r",|[eE][-+]?\d{4}|Infinity",  # a number in JSON is the text of its DOUBLE
)
UNDERFLOWED_DECIMALS = replace(DECIMALS, wrong=r"(?:^|\n)-?0\.0(?:\n|$)")
UNDERFLOW_PATTERN = r"[:\[,]\s*-?[\d.]+[eE]-\d{4}\d*\s*[,\]}]"
"""A pattern for a number in JSON that underflows to 0.0 as a DOUBLE."""
TIMES = AmbiguousType(
    "timestamp",
    after=r'\s*:\s*"\s*T?\d?\d[^\d-]',
    anywhere=r'"\s*T?\d?\d[^\d-]',
    wrong=r"(?:^|\n)\s*(?:T|\d?\d:)",
)


def ambiguous_type(kind: Any) -> AmbiguousType | None:
    """The patterns for values of this type, if it is an ambiguous one."""
    return next((ambiguous for ambiguous in (DECIMALS, TIMES) if _has_type(kind, ambiguous)), None)


def has_ambiguous_type(row: Any, ambiguous: AmbiguousType) -> bool:
    return next(_fields(row, ambiguous), None) is not None


def may_be_ambiguous_expr(text: str, row: Any, ambiguous: AmbiguousType) -> str:
    """SQL: whether a JSON `text` may hold a wrong value. Evaluated for every record, so it must be fast."""
    names = {name for name, _ in _fields(row, ambiguous)}
    if len(names) > _MAX_NAMES or not all(name and _PLAIN.fullmatch(name) for name in names):
        return f"{text} RLIKE {literal(ambiguous.anywhere)}"
    # Java searches a text quickly for a pattern that begins with a long literal.
    patterns = (literal(f'"{name}"{ambiguous.after}') for name in sorted(str(name) for name in names))
    return "(" + " OR ".join(f"{text} RLIKE {pattern}" for pattern in patterns) + ")"


def may_be_today_expr(decoded: str, row: Any, now: float) -> str:
    """SQL: whether a decoded time may be of today. Evaluated first, because it is cheap."""
    if any(path is None for _, path in _fields(row, TIMES)):
        return "true"
    # Two days cover all time zones and clock skew of executors. Rounded to midnight: for a new number in each batch,
    # Spark would compile the expression again each time.
    since = f"timestamp_micros({(int(now) // _DAY - 2) * _DAY * 1_000_000})"
    return "(" + " OR ".join(f"{decoded}.{path} >= {since}" for _, path in _fields(row, TIMES)) + ")"


def is_wrong_expr(texts: str, row: Any, ambiguous: AmbiguousType) -> str:
    """SQL: whether a value is wrong; `texts` is a struct of the type `as_string_schema`."""

    def condition(path: str, kind: Any, *, many: bool) -> str | None:
        if not _has_type(kind, ambiguous):
            return None
        text = f"array_join({path}, '\\n')" if many else path
        return f"{text} RLIKE {literal(ambiguous.wrong)}"

    return f"coalesce({any_nested(texts, row, condition)}, false)"


def as_string_schema(row: Any, ambiguous: AmbiguousType, *, all_columns: bool = False) -> str:
    """The type of a row with STRING for ambiguous values; without other fields, unless `all_columns`."""
    schema = _as_strings(row, ambiguous, all_columns=all_columns)
    assert schema is not None
    return schema


def _has_type(kind: Any, ambiguous: AmbiguousType) -> bool:
    # timestamp_ntz is not ambiguous, because it requires a date.
    return isinstance(kind, str) and kind.partition("(")[0] == ambiguous.kind


def _fields(
    kind: Any, ambiguous: AmbiguousType, path: str | None = "", name: str | None = None
) -> Iterator[tuple[str | None, str | None]]:
    """The name and the path of each ambiguous field; None inside of arrays and maps, which have none."""
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                inner = None if path is None else f"{path}.{quoted(field['name'])}".removeprefix(".")
                yield from _fields(field["type"], ambiguous, inner, field["name"])
        case {"type": "array", "elementType": element}:
            yield from _fields(element, ambiguous, None, None)
        case {"type": "map", "valueType": value}:
            yield from _fields(value, ambiguous, None, None)
        case _ if _has_type(kind, ambiguous):
            yield name, path


def _as_strings(kind: Any, ambiguous: AmbiguousType, *, all_columns: bool) -> str | None:
    match kind:
        case {"type": "struct", "fields": fields}:
            inner = [
                (field["name"], _as_strings(field["type"], ambiguous, all_columns=all_columns)) for field in fields
            ]
            inside = ", ".join(f"{quoted(name)}: {of}" for name, of in inner if of is not None)
            return f"STRUCT<{inside}>" if inside else None
        case {"type": "array", "elementType": element}:
            of = _as_strings(element, ambiguous, all_columns=all_columns)
            return None if of is None else f"ARRAY<{of}>"
        case {"type": "map", "valueType": value}:
            of = _as_strings(value, ambiguous, all_columns=all_columns)
            return None if of is None else f"MAP<STRING, {of}>"
    return "STRING" if all_columns or _has_type(kind, ambiguous) else None
