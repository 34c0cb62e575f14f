"""The columns of a format as a DDL string: certain mistakes are found without Spark, which judges the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.spark.quoting import quoted
from headrace.suggest import did_you_mean

_TYPES = re.findall(
    r"\w+",
    "ARRAY BIGINT BINARY BOOLEAN BYTE CHAR CHARACTER DATE DEC DECIMAL DOUBLE FLOAT GEOGRAPHY GEOMETRY INT INTEGER"
    " INTERVAL LONG MAP NUMERIC REAL SHORT SMALLINT STRING STRUCT TIME TIMESTAMP TIMESTAMP_LTZ TIMESTAMP_NTZ TINYINT"
    " VARCHAR VARIANT VOID",
)
_OTHERS = {
    **dict.fromkeys(("TEXT", "STR", "UUID", "NVARCHAR", "CLOB"), "STRING"),
    **dict.fromkeys(("INT64", "INT8", "BIGSERIAL"), "BIGINT"),
    **dict.fromkeys(("INT32", "INT4", "SERIAL"), "INT"),
    **dict.fromkeys(("FLOAT8", "FLOAT64", "NUMBER"), "DOUBLE"),
    **dict.fromkeys(("DATETIME", "TIMESTAMPTZ", "DATETIME64"), "TIMESTAMP"),
    **dict.fromkeys(("BYTEA", "BYTES", "BLOB", "VARBINARY"), "BINARY"),
    "BOOL": "BOOLEAN",
}
"""What other systems call a type."""
_PART = re.compile(r"\s+|`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s`'\"<>(),:]+|.", re.DOTALL)
_CLOSES = {")": "(", ">": "<"}
_OPENS = frozenset(_CLOSES.values())
_EXAMPLE = '"user STRING, amount DECIMAL(10,2), at TIMESTAMP"'
HINT = f"expected a Spark DDL string: {_EXAMPLE}"


def to_ddl(columns: Any, what: str) -> Any:
    """A DDL string, checked, of one or of a StructType; anything else as it is.

    Whether a column of a StructType may be NULL is left out: records decide.
    """
    if isinstance(columns, str):
        _check(columns, what)
        return columns
    if not hasattr(columns, "jsonValue"):
        return columns
    described = columns.jsonValue()
    return ", ".join(f"{quoted(field['name'])} {_ddl_type(field['type'])}" for field in described["fields"])


def _ddl_type(kind: Any) -> str:
    if not isinstance(kind, Mapping):
        return str(kind)
    match kind["type"]:
        case "struct":
            fields = ", ".join(f"{quoted(field['name'])}: {_ddl_type(field['type'])}" for field in kind["fields"])
            return f"struct<{fields}>"
        case "array":
            return f"array<{_ddl_type(kind['elementType'])}>"
        case "map":
            return f"map<{_ddl_type(kind['keyType'])}, {_ddl_type(kind['valueType'])}>"
        case other:
            raise ConfigError(f"a column of the type {other} has no DDL", hint=HINT)


def _check(ddl: str, what: str) -> None:
    """ConfigError for brackets that do not match, a column without a type, or a type that is a misspelt one."""
    parts = [part for part in _PART.findall(ddl) if not part.isspace()]
    _check_brackets(parts, ddl, what)
    if not parts:
        return  # the format says so in its own words
    for column in _columns(parts):
        if not column:
            raise _refused(what, ddl, "expected a column between two commas")
        name, *rest = column
        if rest[:1] == [":"]:
            rest = rest[1:]
        if not rest and name.upper() not in _TYPES:
            raise _refused(what, ddl, f"the column {name} has no type")
    for word in _type_words(parts):
        if word.upper() not in _TYPES and (near := _meant(word)):
            raise ConfigError(
                f"{what}: the schema does not parse: {ddl!r}: {word} is not a type", hint=f"{near} {HINT}"
            )


def _meant(word: str) -> str | None:
    other = _OTHERS.get(word.upper())
    return f"did you mean {other}?" if other else did_you_mean(word, _TYPES, cutoff=0.75)


def _check_brackets(parts: list[str], ddl: str, what: str) -> None:
    opened: list[str] = []
    for part in parts:
        if part in _OPENS:
            opened.append(part)
        elif part in _CLOSES and (not opened or opened.pop() != _CLOSES[part]):
            raise _refused(what, ddl, f"{part} closes nothing")
        elif part in {"`", "'", '"'}:
            raise _refused(what, ddl, f"a {part} is not closed")
    if opened:
        raise _refused(what, ddl, f"{opened[-1]} is not closed")


def _columns(parts: list[str]) -> list[list[str]]:
    """The parts of each top-level column."""
    columns: list[list[str]] = [[]]
    depth = 0
    for part in parts:
        depth += (part in _OPENS) - (part in _CLOSES)
        if part == "," and not depth:
            columns.append([])
        else:
            columns[-1].append(part)
    if len(columns) > 1 and not columns[-1]:
        columns.pop()  # a comma at the end has always been taken
    return columns


def _type_words(parts: list[str]) -> list[str]:
    """The words that stand where a type does: behind a column's name, and as an element of an array or a map."""
    found: list[str] = []
    opened: list[str] = []
    expect_name = True
    for place, part in enumerate(parts):
        if part in _OPENS:
            opened.append(parts[place - 1].upper() if place else "")
            expect_name = opened[-1] == "STRUCT"
            found += _element(opened, parts[place + 1 :])
        elif part in _CLOSES:
            opened.pop()
            expect_name = False
        elif part == ",":
            expect_name = not opened or opened[-1] == "STRUCT"
            found += _element(opened, parts[place + 1 :])
        elif expect_name:
            expect_name = False
            after = parts[place + 1] if place + 1 < len(parts) else ""
            kind = parts[place + 2] if after == ":" and place + 2 < len(parts) else after
            if kind.isidentifier():
                found.append(kind)
    return found


def _element(opened: list[str], rest: list[str]) -> list[str]:
    return rest[:1] if opened and opened[-1] in ("ARRAY", "MAP") and rest and rest[0].isidentifier() else []


def _refused(what: str, ddl: str, reason: str) -> ConfigError:
    return ConfigError(f"{what}: the schema does not parse: {ddl!r}: {reason}", hint=HINT)
