"""The JSON format: one object per record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.format import CORRUPT, HIDDEN
from headrace.formats import ambiguous_values
from headrace.formats.ambiguous_values import DECIMALS, TIMES, UNDERFLOW_PATTERN, UNDERFLOWED_DECIMALS, AmbiguousType
from headrace.formats.base import TIME_OPTIONS_SQL, ColumnarFormat
from headrace.formats.misfit_fields import fields, mismatch_expr
from headrace.spark.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

_END = f"{HIDDEN}end"
_TYPE_MISMATCH = "'not JSON, or a field does not fit its type'"
_TIME_WITHOUT_DATE = "'not a time: a TIMESTAMP has its date, too'"


@dataclass(frozen=True, kw_only=True)
class Json(ColumnarFormat):
    """One JSON object per record. `columns` is a Spark DDL string such as `"user STRING, at TIMESTAMP"`, or a
    StructType. A sink needs none: it writes the columns of the rows, without NULLs.

    Missing fields are NULL, unknown fields are ignored. A record is bad if it is not JSON, not an object, has text
    after the object, or has a field that does not match its type. A tombstone (no value) becomes a row of NULLs.
    """

    def decode_expr(self, source: str) -> str:
        text, number = f"CAST({source} AS STRING)", self._has_wrong_decimal(source)
        given = text if number is None else f"if({number}, '', {text})"
        return _from_json(given, self.struct(f", {CORRUPT} STRING"), "PERMISSIVE")

    def strict_decode_expr(self, source: str) -> str | None:
        return _from_json(f"CAST({source} AS STRING)", self.struct(""), "FAILFAST")

    def prevalidate_expr(self, source: str) -> str | None:
        # Spark silently replaces bytes that are not UTF-8, reads an array as its first object, and ignores text after
        # an object.
        number = self._has_wrong_decimal(source)
        wrong_number = f" WHEN {number} THEN {_TYPE_MISMATCH}" if number is not None else ""
        # Fast path: without a closing brace before the last byte there is a single object. On bytes, because functions
        # on text count characters one by one.
        flat = f"NOT contains(CAST(substring({source}, 1, octet_length({source}) - 1) AS STRING), '}}')"
        is_single = f"from_json({_with_end_field(source)}, 'STRUCT<{_END}: BOOLEAN>').{_END}"
        return (
            f"CASE WHEN {source} IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8(CAST({source} AS STRING)) THEN 'not UTF-8 text'{wrong_number}"
            f" WHEN startswith({source}, X'7B') AND {flat} THEN NULL"
            f" WHEN NOT coalesce({is_single}, false) THEN 'not one JSON object and nothing else' END"
        )

    def is_valid_expr(self, source: str, decoded: str) -> str | None:
        time = self._has_wrong_time(source, decoded)
        return f"{decoded} IS NOT NULL" + (f" AND NOT {time}" if time is not None else "")

    def error_expr(self, source: str, decoded: str) -> str | None:
        time = self._has_wrong_time(source, decoded)
        without_date = f" WHEN {time} THEN {_TIME_WITHOUT_DATE}" if time is not None else ""
        return (
            f"CASE WHEN {source} IS NULL THEN NULL WHEN {decoded} IS NULL THEN 'not a JSON object'"
            f" WHEN {decoded}.{CORRUPT} IS NOT NULL THEN {_TYPE_MISMATCH}{without_date} END"
        )

    def misfit_expr(self, source: str, error: str) -> str | None:
        text, number = f"CAST({source} AS STRING)", self._has_wrong_decimal(source)

        def corrupt(ddl: str) -> str:
            return f"{_from_json(text, literal(ddl), 'PERMISSIVE')}.{CORRUPT} IS NOT NULL"

        whens = []
        for field in fields(self._row):
            # With a single field in the schema, only this one can be the mismatch.
            wrong = corrupt(field.ddl(f"{CORRUPT}: STRING"))
            got = None if field.json_path is None else f"get_json_object({text}, {literal(field.json_path)})"
            ambiguous = ambiguous_values.ambiguous_type(field.kind)
            may_be_wrong = f"{got} RLIKE {literal(ambiguous.wrong)}" if ambiguous and field.single and got else "false"
            # Spark would need minutes for such a number, so it does not get it.
            wrong = (
                f"if({number}, {may_be_wrong}, {wrong})" if ambiguous is DECIMALS else f"({may_be_wrong} OR {wrong})"
            )
            whens.append(f"WHEN {wrong} THEN {mismatch_expr(field, got)}")
        no_json = corrupt(f"STRUCT<{_END}: STRING, {CORRUPT}: STRING>")
        return (
            f"CASE WHEN {error} NOT IN ({_TYPE_MISMATCH}, {_TIME_WITHOUT_DATE}) THEN NULL"
            f" WHEN {no_json} THEN 'not JSON' {' '.join(whens)} END"
        )

    def _has_wrong_decimal(self, source: str) -> str | None:
        """SQL: whether the text of a DECIMAL is not a number; None if no field has that type."""
        return self._has_wrong_value(source, DECIMALS)

    def _has_wrong_time(self, source: str, decoded: str) -> str | None:
        """SQL: the same for a TIMESTAMP, after decoding."""
        found = self._has_wrong_value(source, TIMES)
        return (
            None
            if found is None
            else f"({ambiguous_values.may_be_today_expr(decoded, self._row, time.time())} AND {found})"
        )

    def _has_wrong_value(self, source: str, ambiguous: AmbiguousType) -> str | None:
        if not ambiguous_values.has_ambiguous_type(self._row, ambiguous):
            return None
        text = f"CAST({source} AS STRING)"
        as_strings = f"from_json({text}, {literal(ambiguous_values.as_string_schema(self._row, ambiguous))})"
        wrong = ambiguous_values.is_wrong_expr(as_strings, self._row, ambiguous)
        if ambiguous is DECIMALS:
            misread = ambiguous_values.is_wrong_expr(as_strings, self._row, UNDERFLOWED_DECIMALS)
            underflow = f"{text} RLIKE {literal(UNDERFLOW_PATTERN)} AND {misread}"
            wrong = f"({wrong} OR {underflow})"
        return f"({ambiguous_values.may_be_ambiguous_expr(text, self._row, ambiguous)} AND {wrong})"

    @property
    def _row(self) -> Any:
        from headrace.spark import ddl

        return ddl.row(self.columns or "")

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if not columns:
            return "CAST('{}' AS BINARY)"
        row = f"struct({', '.join(quoted(name) for name in columns)})"
        return f"CAST(to_json({row}, map({TIME_OPTIONS_SQL})) AS BINARY)"


def _from_json(text: str, schema: str, mode: str) -> str:
    # By default Spark reads digits in a DATE as days since 1970.
    options = f"'columnNameOfCorruptRecord', '{CORRUPT}', 'enableDateTimeParsingFallback', 'false'"
    return f"from_json({text}, {schema}, map('mode', '{mode}', 'allowSingleQuotes', 'false', {options}))"


def _with_end_field(source: str) -> str:
    """SQL: the text of an object with the field `_END` before its last brace; empty if it is not an object.

    Spark reads the first object only. If text follows it, the first object does not have this field.
    """
    text = f"CAST({source} AS STRING)"
    # Slow and rarely needed, so it comes last.
    trimmed = f"CAST(trim(' \\t\\r\\n', {text}) AS BINARY)"
    # An object with fields has a quote early on. An empty one needs the field without a comma.
    empty = f"{text} RLIKE '^[ \\t\\r\\n]*\\\\{{[ \\t\\r\\n]*\\\\}}[ \\t\\r\\n]*$'"
    return (
        f"CASE WHEN {_is_braced(source)} AND contains({text}, '\"') THEN {_insert_end_field(source)}"
        f" WHEN {empty} THEN '{{\"{_END}\":true}}'"
        f" WHEN {_is_braced(trimmed)} THEN {_insert_end_field(trimmed)} ELSE '' END"
    )


def _is_braced(source: str) -> str:
    return f"startswith({source}, X'7B') AND endswith({source}, X'7D')"


def _insert_end_field(source: str) -> str:
    field = f',"{_END}":true}}'.encode().hex()
    return f"CAST(concat(substring({source}, 1, octet_length({source}) - 1), X'{field}') AS STRING)"
