"""JSON objects."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.format import CORRUPT, HIDDEN
from headrace.formats import ambiguous_values
from headrace.formats.ambiguous_values import DECIMALS, TIMES, UNDERFLOW_PATTERN, UNDERFLOWED_DECIMALS, AmbiguousType
from headrace.formats.base import WRITTEN_TIMES, ColumnarFormat
from headrace.formats.misfit_fields import fields, misfit
from headrace.spark.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

_END = f"{HIDDEN}end"
_UNFIT = "'not JSON, or a field does not fit its type'"
_UNDATED = "'not a time: a TIMESTAMP has its date, too'"


@dataclass(frozen=True, kw_only=True)
class Json(ColumnarFormat):
    """One JSON object per record; `columns` is a Spark DDL string such as `"user STRING, at TIMESTAMP"`, or a
    StructType. A sink needs none: it writes the columns that the rows have, NULLs left out.

    Missing fields are NULL and unknown fields ignored. Bad are: text that is not JSON, something else than an
    object, something behind the object, and a field that does not fit its type. A tombstone (no value) gives a row
    of NULLs.
    """

    def decode_expr(self, source: str) -> str:
        text, number = f"CAST({source} AS STRING)", self._no_number(source)
        given = text if number is None else f"if({number}, '', {text})"
        return _read(given, self.struct(f", {CORRUPT} STRING"), "PERMISSIVE")

    def strict_decode_expr(self, source: str) -> str | None:
        return _read(f"CAST({source} AS STRING)", self.struct(""), "FAILFAST")

    def prevalidate_expr(self, source: str) -> str | None:
        # Spark puts a sign for what is not UTF-8, reads an array as its first object, ignores what follows an object:
        # all without a word.
        number = self._no_number(source)
        unfit = f" WHEN {number} THEN {_UNFIT}" if number is not None else ""
        # An object without a brace before its last byte is alone, and that is quickly seen (in bytes, for functions of
        # texts count characters one by one).
        flat = f"NOT contains(CAST(substring({source}, 1, octet_length({source}) - 1) AS STRING), '}}')"
        alone = f"from_json({_marked(source)}, 'STRUCT<{_END}: BOOLEAN>').{_END}"
        return (
            f"CASE WHEN {source} IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8(CAST({source} AS STRING)) THEN 'not UTF-8 text'{unfit}"
            f" WHEN startswith({source}, X'7B') AND {flat} THEN NULL"
            f" WHEN NOT coalesce({alone}, false) THEN 'not one JSON object and nothing else' END"
        )

    def is_valid_expr(self, source: str, decoded: str) -> str | None:
        time = self._no_time(source, decoded)
        return f"{decoded} IS NOT NULL" + (f" AND NOT {time}" if time is not None else "")

    def error_expr(self, source: str, decoded: str) -> str | None:
        time = self._no_time(source, decoded)
        undated = f" WHEN {time} THEN {_UNDATED}" if time is not None else ""
        return (
            f"CASE WHEN {source} IS NULL THEN NULL WHEN {decoded} IS NULL THEN 'not a JSON object'"
            f" WHEN {decoded}.{CORRUPT} IS NOT NULL THEN {_UNFIT}{undated} END"
        )

    def misfit_expr(self, source: str, error: str) -> str | None:
        text, number = f"CAST({source} AS STRING)", self._no_number(source)

        def corrupt(ddl: str) -> str:
            return f"{_read(text, literal(ddl), 'PERMISSIVE')}.{CORRUPT} IS NOT NULL"

        whens = []
        for field in fields(self._row):
            # With no other field in the schema, only this one can be what does not fit.
            wrong = corrupt(field.ddl(f"{CORRUPT}: STRING"))
            got = None if field.json_path is None else f"get_json_object({text}, {literal(field.json_path)})"
            doubt = ambiguous_values.ambiguous_type(field.kind)
            doubtful = f"{got} RLIKE {literal(doubt.wrong)}" if doubt and field.single and got else "false"
            # A number that Spark needs minutes for is not given to it.
            wrong = f"if({number}, {doubtful}, {wrong})" if doubt is DECIMALS else f"({doubtful} OR {wrong})"
            whens.append(f"WHEN {wrong} THEN {misfit(field, got)}")
        no_json = corrupt(f"STRUCT<{_END}: STRING, {CORRUPT}: STRING>")
        return (
            f"CASE WHEN {error} NOT IN ({_UNFIT}, {_UNDATED}) THEN NULL WHEN {no_json} THEN 'not JSON'"
            f" {' '.join(whens)} END"
        )

    def _no_number(self, source: str) -> str | None:
        """SQL: whether a text where a DECIMAL is meant is none; None if nothing has that type."""
        return self._wrong(source, DECIMALS)

    def _no_time(self, source: str, decoded: str) -> str | None:
        """The same of a TIMESTAMP, after it was read."""
        found = self._wrong(source, TIMES)
        return (
            None
            if found is None
            else f"({ambiguous_values.may_be_today_expr(decoded, self._row, time.time())} AND {found})"
        )

    def _wrong(self, source: str, doubt: AmbiguousType) -> str | None:
        if not ambiguous_values.has_ambiguous_type(self._row, doubt):
            return None
        text = f"CAST({source} AS STRING)"
        careful = f"from_json({text}, {literal(ambiguous_values.as_string_schema(self._row, doubt))})"
        wrong = ambiguous_values.is_wrong_expr(careful, self._row, doubt)
        if doubt is DECIMALS:
            misread = ambiguous_values.is_wrong_expr(careful, self._row, UNDERFLOWED_DECIMALS)
            nothing = f"{text} RLIKE {literal(UNDERFLOW_PATTERN)} AND {misread}"
            wrong = f"({wrong} OR {nothing})"
        return f"({ambiguous_values.may_be_ambiguous_expr(text, self._row, doubt)} AND {wrong})"

    @property
    def _row(self) -> Any:
        from headrace.spark import ddl

        return ddl.row(self.columns or "")

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if not columns:
            return "CAST('{}' AS BINARY)"
        row = f"struct({', '.join(quoted(name) for name in columns)})"
        return f"CAST(to_json({row}, map({WRITTEN_TIMES})) AS BINARY)"


def _read(text: str, schema: str, mode: str) -> str:
    # Of itself Spark takes a text of digits for days since 1970, where a DATE is meant.
    options = f"'columnNameOfCorruptRecord', '{CORRUPT}', 'enableDateTimeParsingFallback', 'false'"
    return f"from_json({text}, {schema}, map('mode', '{mode}', 'allowSingleQuotes', 'false', {options}))"


def _marked(source: str) -> str:
    """SQL: the text of an object with one field more, `_END`, before its last brace; empty if it is none.

    Spark reads the first object there is. If something follows it, it does not meet this field.
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
