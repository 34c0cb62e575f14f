"""Lines of fields with a delimiter between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.format import CORRUPT
from headrace.errors import ConfigError
from headrace.formats import ambiguous_values
from headrace.formats.ambiguous_values import DECIMALS, TIMES, AmbiguousType
from headrace.formats.base import WRITTEN_TIMES, ColumnarFormat
from headrace.formats.misfit_fields import fields, misfit
from headrace.spark.sql import literal, quoted
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNFIT = "'not as many fields as columns, or a field does not fit its type'"
_UNDATED = "'not a time: a TIMESTAMP has its date, too'"


@dataclass(frozen=True, kw_only=True)
class Csv(ColumnarFormat):
    """One line per record, with as many fields as `columns`, a Spark DDL string, names. A sink needs no columns.

    A field that holds the delimiter stands in `quote`s, and a quote within is written twice. An empty field is NULL.
    Bad are: fewer or more fields, a field that does not fit its type, a quote that does not end, an empty record.
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
        line, number = _line(source), self._wrong(source, DECIMALS)
        given = line if number is None else f"if({number}, NULL, {line})"
        return f"from_csv({given}, {self.struct(f', {CORRUPT} STRING')}, map({options}))"

    def error_expr(self, source: str, decoded: str) -> str | None:
        line, quote = _line(source), literal(self.quote)
        # Spark takes a quote that does not end for one that ends with the line.
        opened = literal(f"(^|{re.escape(self.delimiter)}){re.escape(self.quote)}")
        time = self._wrong(source, TIMES)
        undated = f" WHEN {time} THEN {_UNDATED}" if time is not None else ""
        odd = f"(octet_length({line}) - octet_length(replace({line}, {quote}, ''))) % 2 = 1"
        return (
            f"CASE WHEN {source} IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8({line}) THEN 'not UTF-8 text'"
            f" WHEN {line} = '' THEN 'no CSV: nothing is in it'"
            f" WHEN {decoded} IS NULL OR {decoded}.{CORRUPT} IS NOT NULL"
            f" THEN {_UNFIT}"
            f" WHEN contains({line}, {quote}) AND {odd} AND {line} RLIKE {opened}"
            f" THEN 'a quote does not end'{undated} END"
        )

    def misfit_expr(self, source: str, error: str) -> str | None:
        from headrace.spark import ddl

        found, number = fields(ddl.row(self.columns or "")), self._wrong(source, DECIMALS)
        texts = ", ".join(f"{quoted(field.name)}: STRING" for field in found)
        options = f"{self._options()}, 'mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}'"
        read = f"from_csv({_line(source)}, {literal(f'STRUCT<{texts}, {CORRUPT}: STRING>')}, map({options}))"
        whens = []
        for field in found:
            got, decoded = f"{read}.{quoted(field.name)}", f"{self.decode_expr(source)}.{quoted(field.name)}"
            wrong, doubt = f"({got} IS NOT NULL AND {decoded} IS NULL)", ambiguous_values.ambiguous_type(field.kind)
            doubtful = f"{got} RLIKE {literal(doubt.wrong)}" if doubt else "false"
            if number is not None:  # then nothing was decoded
                wrong = f"if({number}, {doubtful if doubt is DECIMALS else 'false'}, {wrong})"
            whens.append(f"WHEN {doubtful} OR {wrong} THEN {misfit(field, got)}")
        wanted = counted(len(found), "field")
        return (
            f"CASE WHEN {error} NOT IN ({_UNFIT}, {_UNDATED}) THEN NULL"
            f" WHEN {read}.{CORRUPT} IS NOT NULL THEN 'expected {wanted}' {' '.join(whens)} END"
        )

    def _wrong(self, source: str, doubt: AmbiguousType) -> str | None:
        """SQL: whether a field is a number or a time to Spark alone; None if no column has that type."""
        from headrace.spark import ddl

        row = ddl.row(self.columns or "")
        if not ambiguous_values.has_ambiguous_type(row, doubt):
            return None
        line = _line(source)
        if doubt is DECIMALS:
            # A comma that is no delimiter, or one in quotes.
            comma = self.quote if self.delimiter == "," else ","
            doubtful = f"(contains({line}, {literal(comma)}) OR {line} RLIKE '[eE][-+]?[0-9]{{4}}')"
        else:
            begins = f"(?:^|[{re.escape(self.delimiter + self.quote)}])"
            doubtful = f"{line} RLIKE {literal(begins + '[ ]*T?[0-9]?[0-9](?:[^-0-9]|$)')}"
        kind = literal(ambiguous_values.as_string_schema(row, doubt, whole=True))
        careful = f"from_csv({line}, {kind}, map({self._options()}))"
        return f"({doubtful} AND {ambiguous_values.is_wrong_expr(careful, row, doubt)})"

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        for name, kind in columns.items():
            if not isinstance(kind, str) or kind in ("binary", "variant", "void"):
                shown = kind if isinstance(kind, str) else kind["type"]
                raise ConfigError(
                    f"the column {name} is {shown}, which CSV does not have",
                    hint=f"to_json({name}), or CAST({name} AS STRING), in the transform",
                )
        if not columns:
            raise ConfigError("there are no columns to write as CSV", hint="select some in the transform")
        # Of itself Spark cuts off the blanks around a text.
        blanks = "'ignoreLeadingWhiteSpace', 'false', 'ignoreTrailingWhiteSpace', 'false'"
        names = [quoted(name) for name in columns]
        line = f"to_csv(struct({', '.join(names)}), map({self._options()}, {blanks}, {WRITTEN_TIMES}))"
        if len(names) == 1:  # an empty line would be no record of this format; and Spark cannot write it
            line = f"if({names[0]} IS NULL, {literal(self.quote * 2)}, {line})"
        return f"CAST({line} AS BINARY)"

    def _options(self) -> str:
        return f"'sep', {literal(self.delimiter)}, 'quote', {literal(self.quote)}, 'escape', {literal(self.quote)}"


def _line(source: str) -> str:
    """Without the end of the line, which would be a part of the last field."""
    return f"rtrim('\\r\\n', CAST({source} AS STRING))"
