"""Checks the columns of a format, a DDL string, without Spark. Spark finds the remaining mistakes later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.spark.sql import quoted
from headrace.support.suggest import did_you_mean

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
"""Names of types in other systems."""
_PART = re.compile(
    r"""\s+|--[^\n]*|/\*.*?\*/|`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s`'"<>(),:]+|.""", re.DOTALL
)
_WORD = re.compile(r"\w+|`.*`", re.DOTALL)
_CLOSES = {")": "(", ">": "<"}
_OPENS = frozenset(_CLOSES.values())
_ENDS = frozenset({"", *_CLOSES})
_NESTED_EXAMPLES = {"ARRAY": "ARRAY<STRING>", "MAP": "MAP<STRING, INT>", "STRUCT": "STRUCT<user: STRING>"}
_DECIMALS, _DIGITS = frozenset({"DECIMAL", "DEC", "NUMERIC"}), 38
_AFTER = re.compile("NOT|NULL|COMMENT|COLLATE|DEFAULT|GENERATED|WITH|WITHOUT|PRECISION|VARYING", re.IGNORECASE)
"""Words that may follow the type of a column; a column with such a name is left to Spark."""
_EXAMPLE = '"user STRING, amount DECIMAL(10,2), at TIMESTAMP"'
HINT = f"expected a Spark DDL string: {_EXAMPLE}"


def to_ddl(columns: Any, what: str) -> Any:
    """A checked DDL string from a DDL string or a StructType; any other value unchanged.

    NOT NULL of a StructType is dropped: any field of a record may be missing.
    """
    if isinstance(columns, str):
        _check(columns, what)
        return columns
    described = columns.jsonValue() if hasattr(columns, "jsonValue") and not isinstance(columns, type) else None
    if not isinstance(described, Mapping) or described["type"] != "struct":
        return columns
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
            raise ConfigError(f"the type {other} cannot be written as DDL", hint=HINT)


def _check(ddl: str, what: str) -> None:
    """ConfigError for a mistake that `_Parts` finds."""
    found = [part for part in _PART.findall(ddl) if not part.isspace() and not part.startswith(("--", "/*"))]
    _check_brackets(found, ddl, what)
    parts = _Parts(found, ddl, what)
    if found and found[0].upper() in _TYPES and found[1:2] in ([], ["<"], ["("]):
        parts.type()  # a type without a column: Spark accepts a STRUCT and rejects others
        return
    names = [name.strip("`").lower() for name in parts.columns()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _syntax_error(what, ddl, f"the column {twice} occurs twice")


def _suggest(word: str) -> str | None:
    other = _OTHERS.get(word.upper())
    return f"did you mean {other}?" if other else did_you_mean(word, _TYPES, cutoff=0.75)


def _check_brackets(parts: list[str], ddl: str, what: str) -> None:
    opened: list[str] = []
    for part in parts:
        if part in _OPENS:
            opened.append(part)
        elif part in _CLOSES and (not opened or opened.pop() != _CLOSES[part]):
            raise _syntax_error(what, ddl, f"{part} closes nothing")
        elif part in {"`", "'", '"'}:
            raise _syntax_error(what, ddl, f"a {part} is not closed")
    if opened:
        raise _syntax_error(what, ddl, f"{opened[-1]} is not closed")


class _Parts:
    """Parses the tokens of a DDL string as far as the grammar is certain; Spark parses the rest."""

    def __init__(self, parts: list[str], ddl: str, what: str) -> None:
        self._left = [*reversed(parts)]
        self._ddl = ddl
        self._what = what

    def columns(self) -> list[str]:
        """The names of the columns up to a closing bracket or the end."""
        names = []
        while self._next not in _ENDS:
            name = self._left.pop()
            if name == ",":
                raise self._syntax_error("expected a column between two commas")
            if self._next == ":":
                self._left.pop()
            if self._next in (",", *_ENDS):
                raise self._syntax_error(f"the column {name} has no type")
            self.type()
            names.append(name)
            if _WORD.fullmatch(self._next) and not _AFTER.fullmatch(self._next):
                raise self._syntax_error(f"expected a comma before {self._next}")
            self._skip()
            if self._next == "," and self._left.pop() and self._next in _ENDS:
                raise self._syntax_error("expected a column after the last comma")
        return names

    def type(self) -> None:
        word = self._left.pop()
        kind = word.upper()
        if kind not in _TYPES:
            if word.isidentifier() and (near := _suggest(word)):
                raise self._syntax_error(f"{word} is not a type", f"{near} {HINT}")
            self._skip()
        elif kind in _NESTED_EXAMPLES:
            self._parameters(kind)
        elif self._next == "(":
            given = [self._left.pop() for _ in range(self._left[::-1].index(")") + 1)][1:-1:2]
            if kind in _DECIMALS and all(number.isdecimal() for number in given):
                precision, scale = (*map(int, given), 0)[:2] if given else (10, 0)
                if precision > _DIGITS or scale > precision:
                    limit = f"expected at most {_DIGITS} digits, and no more after the point than in all"
                    raise self._syntax_error(f"{word}({', '.join(given)}): {limit}")
        elif kind == "INTERVAL":
            self._skip()

    def _parameters(self, kind: str) -> None:
        """The type parameters of an ARRAY, MAP or STRUCT."""
        if self._next != "<":
            raise self._syntax_error(f"{kind}: expected type parameters as in {_NESTED_EXAMPLES[kind]}")
        self._left.pop()
        if kind == "STRUCT":
            self.columns()
        for end in {"ARRAY": ">", "MAP": ",>"}.get(kind, ""):
            if has_type := self._next not in (",", *_ENDS):
                self.type()
                self._skip()
            if not has_type or self._next != end:
                raise self._syntax_error(f"{kind}: expected type parameters as in {_NESTED_EXAMPLES[kind]}")
            if end == ",":
                self._left.pop()
        self._left.pop()

    @property
    def _next(self) -> str:
        return self._left[-1] if self._left else ""

    def _skip(self) -> None:
        """Skip to the next comma or end on this level."""
        depth = 0
        while depth or self._next not in (",", *_ENDS):
            part = self._left.pop()
            depth += (part in _OPENS) - (part in _CLOSES)

    def _syntax_error(self, reason: str, hint: str = HINT) -> ConfigError:
        return _syntax_error(self._what, self._ddl, reason, hint)


def _syntax_error(what: str, ddl: str, reason: str, hint: str = HINT) -> ConfigError:
    return ConfigError(f"{what}: the schema does not parse: {ddl!r}: {reason}", hint=hint)
