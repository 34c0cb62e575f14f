"""JSON objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.formats.base import CORRUPT, WRITTEN_TIMES, Columned
from headrace.spark.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Json(Columned):
    """One JSON object per record; `columns` is a Spark DDL string such as `"user STRING, at TIMESTAMP"`. A sink needs
    none: it writes the columns that the rows have, NULLs left out.

    Missing fields are NULL and unknown fields ignored. Bad are: text that is not JSON, something else than an
    object, something behind the object, and a field that does not fit its type. A tombstone (no value) gives a row
    of NULLs.
    """

    def decoded(self, source: str) -> str:
        return self._read(source, CORRUPT, f"'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}'")

    def failing(self, source: str) -> str | None:
        return self._read(source, None, "'FAILFAST'")

    def _read(self, source: str, hidden: str | None, mode: str) -> str:
        columns = self.columns_and(hidden)
        return f"from_json(CAST({source} AS STRING), {columns}, map('mode', {mode}, 'allowSingleQuotes', 'false'))"

    def shape(self, source: str) -> str | None:
        # Spark puts a sign for what is not UTF-8, reads an array as its first object, ignores what follows an object:
        # all without a word.
        text = f"CAST({source} AS STRING)"
        # A flat object has no brace before its last byte, which is quickly seen (in bytes, for functions of texts count
        # characters one by one). Otherwise the text must be an object, and the one element of an array.
        flat = f"NOT contains(CAST(substring({source}, 1, octet_length({source}) - 1) AS STRING), '}}')"
        is_object = f"startswith(ltrim(' \\t\\r\\n', {text}), '{{')"
        alone = f"coalesce(json_array_length(concat('[', {text}, ']')), 0) = 1"
        return (
            f"CASE WHEN {source} IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8({text}) THEN 'not UTF-8 text'"
            f" WHEN {flat} THEN NULL"
            f" WHEN NOT {is_object} THEN 'not a JSON object'"
            f" WHEN NOT {alone} THEN 'not one JSON object, or something follows it' END"
        )

    def good(self, decoded: str) -> str | None:
        return f"{decoded} IS NOT NULL"

    def error(self, source: str, decoded: str) -> str | None:
        return (
            f"CASE WHEN {source} IS NULL THEN NULL WHEN {decoded} IS NULL THEN 'not a JSON object'"
            f" WHEN {decoded}.{CORRUPT} IS NOT NULL THEN 'not JSON, or a field does not fit its type' END"
        )

    def encoded(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if not columns:
            return "CAST('{}' AS BINARY)"
        row = f"struct({', '.join(quoted(name) for name in columns)})"
        return f"CAST(to_json({row}, map({WRITTEN_TIMES})) AS BINARY)"
