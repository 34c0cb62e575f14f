"""JSON objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.formats.base import CORRUPT, HIDDEN, WRITTEN_TIMES, Columned
from headrace.spark.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping


_END = f"{HIDDEN}end"


@dataclass(frozen=True, kw_only=True)
class Json(Columned):
    """One JSON object per record; `columns` is a Spark DDL string such as `"user STRING, at TIMESTAMP"`. A sink needs
    none: it writes the columns that the rows have, NULLs left out.

    Missing fields are NULL and unknown fields ignored. Bad are: text that is not JSON, something else than an
    object, something behind the object, and a field that does not fit its type. A tombstone (no value) gives a row
    of NULLs.
    """

    def decoded(self, source: str) -> str:
        return self._read(source, f", {CORRUPT} STRING", f"'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}'")

    def failing(self, source: str) -> str | None:
        return self._read(source, "", "'FAILFAST'")

    def _read(self, source: str, more: str, mode: str) -> str:
        columns = self.struct(f", {_END} BOOLEAN{more}")
        whole = f"if(is_valid_utf8(CAST({source} AS STRING)), {_marked(source)}, '')"
        return f"from_json({whole}, {columns}, map('mode', {mode}, 'allowSingleQuotes', 'false'))"

    def good(self, decoded: str) -> str | None:
        return f"{decoded}.{_END}"

    def error(self, source: str, decoded: str) -> str | None:
        return (
            f"CASE WHEN {source} IS NULL OR {decoded}.{_END} AND {decoded}.{CORRUPT} IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8(CAST({source} AS STRING)) THEN 'not UTF-8 text'"
            f" WHEN {decoded}.{CORRUPT} IS NOT NULL THEN 'not JSON, or a field does not fit its type'"
            " ELSE 'not one JSON object and nothing else' END"
        )

    def encoded(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if not columns:
            return "CAST('{}' AS BINARY)"
        row = f"struct({', '.join(quoted(name) for name in columns)})"
        return f"CAST(to_json({row}, map({WRITTEN_TIMES})) AS BINARY)"


def _marked(source: str) -> str:
    """SQL: the text of an object with one field more, `_END`, before its last brace; empty if it is none.

    Spark reads the first object there is, and says nothing about what follows: then it does not meet this field.
    """
    text = f"CAST({source} AS STRING)"
    # Rare, and slow: so it comes last.
    trimmed = f"CAST(trim(' \\t\\r\\n', {text}) AS BINARY)"
    # Whatever has fields has a quote, soon. Before the first field no comma can stand.
    empty = f"{text} RLIKE '^[ \\t\\r\\n]*\\\\{{[ \\t\\r\\n]*\\\\}}[ \\t\\r\\n]*$'"
    return (
        f"CASE WHEN {_braced(source)} AND contains({text}, '\"') THEN {_with_end(source)}"
        f" WHEN {empty} THEN '{{\"{_END}\":true}}'"
        f" WHEN {_braced(trimmed)} THEN {_with_end(trimmed)} ELSE '' END"
    )


def _braced(source: str) -> str:
    return f"startswith({source}, X'7B') AND endswith({source}, X'7D')"


def _with_end(source: str) -> str:
    field = f',"{_END}":true}}'.encode().hex()
    return f"CAST(concat(substring({source}, 1, octet_length({source}) - 1), X'{field}') AS STRING)"
