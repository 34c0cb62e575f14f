"""JSON objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.formats.base import Format, literal
from headrace.spark.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

_CORRUPT = "_headrace_corrupt"
_TEXT = "CAST(value AS STRING)"
# The first test is what nearly every record passes; trimming copies the text.
_OBJECT = f"startswith({_TEXT}, '{{') OR startswith(ltrim(' \\t\\r\\n', {_TEXT}), '{{')"
# A flat object ends with its only brace, which is quickly seen (in bytes: locate and length count characters, one by
# one); otherwise the text must be the one element of an array.
_MORE = (
    f"octet_length(substring_index({_TEXT}, '}}', 1)) + 1 < octet_length({_TEXT})"
    f" AND coalesce(json_array_length(concat('[', {_TEXT}, ']')), 0) <> 1"
)


@dataclass(frozen=True, kw_only=True)
class Json(Format):
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

    def schema(self) -> str:
        if self.columns is None:
            raise ConfigError("Json() needs its columns to read", hint='hr.Json("user STRING, page STRING")')
        return self.columns

    def decoded(self) -> str:
        columns = literal(f"STRUCT<{self.schema().strip().rstrip(',')}, {_CORRUPT} STRING>")
        options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
        return f"from_json({_TEXT}, {columns}, {options})"

    def error(self) -> str | None:
        # Spark reads an array as its first object, blank text as nothing, and ignores what follows an object: all
        # without a word.
        return (
            "CASE WHEN value IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8({_TEXT}) THEN 'not UTF-8 text'"
            f" WHEN NOT ({_OBJECT}) THEN 'not a JSON object'"
            f" WHEN decoded IS NULL OR decoded.{_CORRUPT} IS NOT NULL"
            " THEN 'not JSON, or a field does not fit its type'"
            f" WHEN {_MORE} THEN 'not one JSON object: something follows it' END"
        )

    def encoded(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if not columns:
            return "CAST('{}' AS BINARY)"
        return f"CAST(to_json(struct({', '.join(quoted(name) for name in columns)})) AS BINARY)"
