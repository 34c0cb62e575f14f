"""JSON objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.formats.base import HIDDEN, Described, literal
from headrace.spark.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

_CORRUPT = f"{HIDDEN}corrupt"


@dataclass(frozen=True, kw_only=True)
class Json(Described):
    """One JSON object per record; `columns` is a Spark DDL string such as `"user STRING, at TIMESTAMP"`. A sink needs
    none: it writes the columns that the rows have, NULLs left out.

    Missing fields are NULL and unknown fields ignored. Bad are: text that is not JSON, something else than an
    object, something behind the object, and a field that does not fit its type. A tombstone (no value) gives a row
    of NULLs.
    """

    columns: str | None = field(default=None, kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns is not None and (not isinstance(self.columns, str) or not self.columns.strip()):
            raise ConfigError(f"Json({self.columns!r}) names no columns", hint='hr.Json("user STRING, page STRING")')

    def check_reads(self) -> None:
        if self.columns is None:
            raise ConfigError("Json() needs its columns to read", hint='hr.Json("user STRING, page STRING")')

    def ddl(self) -> str | None:
        return self.columns

    def decoded(self, source: str) -> str:
        columns = literal(f"STRUCT<{(self.columns or '').strip().rstrip(',')}, {_CORRUPT} STRING>")
        options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
        return f"from_json(CAST({source} AS STRING), {columns}, {options})"

    def error(self, source: str, decoded: str) -> str | None:
        # Spark reads an array as its first object, blank text as nothing, and ignores what follows an object: all
        # without a word.
        text = f"CAST({source} AS STRING)"
        # The first test is what nearly every record passes; trimming copies the text.
        is_object = f"startswith({text}, '{{') OR startswith(ltrim(' \\t\\r\\n', {text}), '{{')"
        # A flat object ends with its only brace, which is quickly seen (in bytes: locate and length count characters,
        # one by one); otherwise the text must be the one element of an array.
        more = (
            f"octet_length(substring_index({text}, '}}', 1)) + 1 < octet_length({text})"
            f" AND coalesce(json_array_length(concat('[', {text}, ']')), 0) <> 1"
        )
        return (
            f"CASE WHEN {source} IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8({text}) THEN 'not UTF-8 text'"
            f" WHEN NOT ({is_object}) THEN 'not a JSON object'"
            f" WHEN {decoded} IS NULL OR {decoded}.{_CORRUPT} IS NOT NULL"
            " THEN 'not JSON, or a field does not fit its type'"
            f" WHEN {more} THEN 'not one JSON object: something follows it' END"
        )

    def encoded(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if not columns:
            return "CAST('{}' AS BINARY)"
        return f"CAST(to_json(struct({', '.join(quoted(name) for name in columns)})) AS BINARY)"
