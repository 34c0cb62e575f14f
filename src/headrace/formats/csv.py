"""The CSV format: one line per record, fields with a delimiter between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.format import CORRUPT
from headrace.errors import ConfigError
from headrace.formats import ambiguous_values
from headrace.formats.ambiguous_values import DECIMALS, TIMES, AmbiguousType
from headrace.formats.base import TIME_OPTIONS_SQL, ColumnarFormat
from headrace.formats.misfit_fields import fields, mismatch_expr
from headrace.spark.sql import literal, quoted
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPE_MISMATCH = "'not as many fields as columns, or a field does not fit its type'"
_TIME_WITHOUT_DATE = "'not a time: a TIMESTAMP has its date, too'"


@dataclass(frozen=True, kw_only=True)
class Csv(ColumnarFormat):
    """One line per record, with one field for each of `columns`, a Spark DDL string. A sink needs no columns.

    A field with the delimiter in it is enclosed in `quote`s; a quote inside is doubled. An empty field is NULL. A
    record is bad if it is empty, has fewer or more fields, a field that does not match its type, or an unclosed quote.
    """

    delimiter: str = ","
    quote: str = '"'

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, given in (("delimiter", self.delimiter), ("quote", self.quote)):
            if not isinstance(given, str) or len(given) != 1 or given in "\r\n\0":
                raise ConfigError(f"{name}={given!r} is not one character", hint=f'{name}=";"')
        if self.delimiter == self.quote:
            raise ConfigError(f"delimiter and quote are both {self.quote!r}", hint='delimiter=";"')

    def decode_expr(self, source: str) -> str:
        options = f"{self._options()}, 'mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}'"
        line, number = _line(source), self._has_wrong_value(source, DECIMALS)
        given = line if number is None else f"if({number}, NULL, {line})"
        return f"from_csv({given}, {self.struct(f', {CORRUPT} STRING')}, map({options}))"

    def error_expr(self, source: str, decoded: str) -> str | None:
        line, quote = _line(source), literal(self.quote)
        # Spark closes an open quote at the end of the line.
        opened = literal(f"(^|{re.escape(self.delimiter)}){re.escape(self.quote)}")
        time = self._has_wrong_value(source, TIMES)
        without_date = f" WHEN {time} THEN {_TIME_WITHOUT_DATE}" if time is not None else ""
        odd = f"(octet_length({line}) - octet_length(replace({line}, {quote}, ''))) % 2 = 1"
        return (
            f"CASE WHEN {source} IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8({line}) THEN 'not UTF-8 text'"
            f" WHEN {line} = '' THEN 'not CSV: the record is empty'"
            f" WHEN {decoded} IS NULL OR {decoded}.{CORRUPT} IS NOT NULL"
            f" THEN {_TYPE_MISMATCH}"
            f" WHEN contains({line}, {quote}) AND {odd} AND {line} RLIKE {opened}"
            f" THEN 'a quote does not end'{without_date} END"
        )

    def misfit_expr(self, source: str, error: str) -> str | None:
        from headrace.spark import ddl

        found, number = fields(ddl.row(self.columns or "")), self._has_wrong_value(source, DECIMALS)
        texts = ", ".join(f"{quoted(field.name)}: STRING" for field in found)
        options = f"{self._options()}, 'mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}'"
        read = f"from_csv({_line(source)}, {literal(f'STRUCT<{texts}, {CORRUPT}: STRING>')}, map({options}))"
        whens = []
        for field in found:
            got, decoded = f"{read}.{quoted(field.name)}", f"{self.decode_expr(source)}.{quoted(field.name)}"
            wrong, ambiguous = f"({got} IS NOT NULL AND {decoded} IS NULL)", ambiguous_values.ambiguous_type(field.kind)
            may_be_wrong = f"{got} RLIKE {literal(ambiguous.wrong)}" if ambiguous else "false"
            if number is not None:  # then no field was decoded
                wrong = f"if({number}, {may_be_wrong if ambiguous is DECIMALS else 'false'}, {wrong})"
            whens.append(f"WHEN {may_be_wrong} OR {wrong} THEN {mismatch_expr(field, got)}")
        expected = counted(len(found), "field")
        return (
            f"CASE WHEN {error} NOT IN ({_TYPE_MISMATCH}, {_TIME_WITHOUT_DATE}) THEN NULL"
            f" WHEN {read}.{CORRUPT} IS NOT NULL THEN 'expected {expected}' {' '.join(whens)} END"
        )

    def _has_wrong_value(self, source: str, ambiguous: AmbiguousType) -> str | None:
        """SQL: whether Spark reads a field as a wrong number or time; None if no column has that type."""
        from headrace.spark import ddl

        row = ddl.row(self.columns or "")
        if not ambiguous_values.has_ambiguous_type(row, ambiguous):
            return None
        line = _line(source)
        if ambiguous is DECIMALS:
            # A comma that is not a delimiter, or one in quotes.
            comma = self.quote if self.delimiter == "," else ","
            may_be_wrong = f"(contains({line}, {literal(comma)}) OR {line} RLIKE '[eE][-+]?[0-9]{{4}}')"
        else:
            begins = f"(?:^|[{re.escape(self.delimiter + self.quote)}])"
            may_be_wrong = f"{line} RLIKE {literal(begins + '[ ]*T?[0-9]?[0-9](?:[^-0-9]|$)')}"
        kind = literal(ambiguous_values.as_string_schema(row, ambiguous, all_columns=True))
        as_strings = f"from_csv({line}, {kind}, map({self._options()}))"
        return f"({may_be_wrong} AND {ambiguous_values.is_wrong_expr(as_strings, row, ambiguous)})"

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        for name, kind in columns.items():
            if not isinstance(kind, str) or kind in ("binary", "variant", "void"):
                shown = kind if isinstance(kind, str) else kind["type"]
                raise ConfigError(
                    f"the column {name} is {shown}, which CSV does not support",
                    hint=f"to_json({name}), or CAST({name} AS STRING), in the transform",
                )
        if not columns:
            raise ConfigError("there are no columns to write as CSV", hint="select some in the transform")
        # By default Spark trims blanks around a text.
        blanks = "'ignoreLeadingWhiteSpace', 'false', 'ignoreTrailingWhiteSpace', 'false'"
        names = [quoted(name) for name in columns]
        line = f"to_csv(struct({', '.join(names)}), map({self._options()}, {blanks}, {TIME_OPTIONS_SQL}))"
        if len(names) == 1:  # an empty line would be a bad record
            line = f"if({names[0]} IS NULL, {literal(self.quote * 2)}, {line})"
        return f"CAST({line} AS BINARY)"

    def _options(self) -> str:
        return f"'sep', {literal(self.delimiter)}, 'quote', {literal(self.quote)}, 'escape', {literal(self.quote)}"


def _line(source: str) -> str:
    """SQL: the text without line breaks at its end, which would belong to the last field."""
    return f"rtrim('\\r\\n', CAST({source} AS STRING))"
