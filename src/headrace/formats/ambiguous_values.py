"""Texts that Spark reads as another number or time than they say: found by a quick look, and then looked at with care.

For a DECIMAL it leaves out the commas of a text ("1,5" is 15), and needs minutes for 1e400000000. For a TIMESTAMP it
takes "12:30" for a time of today.
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
_MOST = 3
"""Names that are looked for one by one."""


@dataclass(frozen=True, slots=True)
class AmbiguousType:
    """Of the values of one type. What is doubtful may well be good; what is `wrong` is not."""

    kind: str
    """How the name of the type begins."""
    after: str
    """A pattern of what stands behind the name of a field in JSON, where its value is doubtful."""
    anywhere: str
    """The same without the name."""
    wrong: str
    """A pattern of a value that is wrong, in one or several that have a line each."""


DECIMALS = AmbiguousType(
    "decimal",
    after=r'\s*:\s*(?:"[^"]*[,\\]|"?[-+.\d]*[eE][-+]?\d{4})',
    anywhere=r'[eE][-+]?\d{4}|"[-+.\d\\][^"]*[,\\]|"[-+]?,\d',
    wrong=r",|[eE][-+]?\d{4}|Infinity",  # what JSON has as a number is that of a DOUBLE as a text
)
UNDERFLOWED_DECIMALS = replace(DECIMALS, wrong=r"(?:^|\n)-?0\.0(?:\n|$)")
UNDERFLOW_PATTERN = r"[:\[,]\s*-?[\d.]+[eE]-\d{4}\d*\s*[,\]}]"
"""A pattern of a number in JSON that is 0.0 as a DOUBLE."""
TIMES = AmbiguousType(
    "timestamp",
    after=r'\s*:\s*"\s*T?\d?\d[^\d-]',
    anywhere=r'"\s*T?\d?\d[^\d-]',
    wrong=r"(?:^|\n)\s*(?:T|\d?\d:)",
)


def ambiguous_type(kind: Any) -> AmbiguousType | None:
    """The one that values of this type are in."""
    return next((doubt for doubt in (DECIMALS, TIMES) if _kind_of(kind, doubt)), None)


def has_ambiguous_type(row: Any, doubt: AmbiguousType) -> bool:
    return next(_fields(row, doubt), None) is not None


def may_be_ambiguous_expr(text: str, row: Any, doubt: AmbiguousType) -> str:
    """SQL: whether a JSON `text` may have a wrong value in a row of this type. It is asked of every record."""
    names = {name for name, _ in _fields(row, doubt)}
    if len(names) > _MOST or not all(name and _PLAIN.fullmatch(name) for name in names):
        return f"{text} RLIKE {literal(doubt.anywhere)}"
    # Where a pattern begins with a long word, Java passes over the rest of the text quickly.
    looks = (literal(f'"{name}"{doubt.after}') for name in sorted(str(name) for name in names))
    return "(" + " OR ".join(f"{text} RLIKE {look}" for look in looks) + ")"


def may_be_today_expr(decoded: str, row: Any, now: float) -> str:
    """SQL: whether one of the times may be of today; asked before `doubtful`, for it costs nothing."""
    if any(path is None for _, path in _fields(row, TIMES)):
        return "true"
    # Two days, whatever the zone and the clock of an executor. From midnight on, for with another number Spark would
    # compile the expression anew for every batch.
    since = f"timestamp_micros({(int(now) // _DAY - 2) * _DAY * 1_000_000})"
    return "(" + " OR ".join(f"{decoded}.{path} >= {since}" for _, path in _fields(row, TIMES)) + ")"


def is_wrong_expr(texts: str, row: Any, doubt: AmbiguousType) -> str:
    """SQL: whether a value is wrong; `texts` is a struct of the type `as_texts`."""

    def look(path: str, kind: Any, *, many: bool) -> str | None:
        if not _kind_of(kind, doubt):
            return None
        text = f"array_join({path}, '\\n')" if many else path
        return f"{text} RLIKE {literal(doubt.wrong)}"

    return f"coalesce({any_nested(texts, row, look)}, false)"


def as_string_schema(row: Any, doubt: AmbiguousType, *, whole: bool = False) -> str:
    """The type of a row with texts for such values, and, unless it is the `whole`, without the rest."""
    made = _as_texts(row, doubt, whole=whole)
    assert made is not None
    return made


def _kind_of(kind: Any, doubt: AmbiguousType) -> bool:
    # A wall clock (timestamp_ntz) must have its date.
    return isinstance(kind, str) and kind.partition("(")[0] == doubt.kind


def _fields(
    kind: Any, doubt: AmbiguousType, path: str | None = "", name: str | None = None
) -> Iterator[tuple[str | None, str | None]]:
    """The name of each field that has such a value, and the path to it; None where it has none."""
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                inner = None if path is None else f"{path}.{quoted(field['name'])}".removeprefix(".")
                yield from _fields(field["type"], doubt, inner, field["name"])
        case {"type": "array", "elementType": element}:
            yield from _fields(element, doubt, None, None)
        case {"type": "map", "valueType": value}:
            yield from _fields(value, doubt, None, None)
        case _ if _kind_of(kind, doubt):
            yield name, path


def _as_texts(kind: Any, doubt: AmbiguousType, *, whole: bool) -> str | None:
    match kind:
        case {"type": "struct", "fields": fields}:
            made = [(field["name"], _as_texts(field["type"], doubt, whole=whole)) for field in fields]
            inside = ", ".join(f"{quoted(name)}: {of}" for name, of in made if of is not None)
            return f"STRUCT<{inside}>" if inside else None
        case {"type": "array", "elementType": element}:
            of = _as_texts(element, doubt, whole=whole)
            return None if of is None else f"ARRAY<{of}>"
        case {"type": "map", "valueType": value}:
            of = _as_texts(value, doubt, whole=whole)
            return None if of is None else f"MAP<STRING, {of}>"
    return "STRING" if whole or _kind_of(kind, doubt) else None
