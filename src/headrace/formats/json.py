"""JSON objects by a schema."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import ConfigError
from headrace.formats.base import Format, literal

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
    """One JSON object per record; `columns` is a Spark DDL string such as `"user STRING, at TIMESTAMP"`.

    Missing fields are NULL and unknown fields ignored. Bad are: text that is not JSON, something else than an
    object, something behind the object, and a field that does not fit its type. A tombstone (no value) gives a row
    of NULLs.
    """

    columns: str = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.columns, str) or not self.columns.strip():
            raise ConfigError("Json() needs its columns", hint='hr.Json("user STRING, page STRING")')

    def schema(self) -> str:
        return self.columns

    def decoded(self) -> str:
        columns = literal(f"STRUCT<{self.columns.strip().rstrip(',')}, {_CORRUPT} STRING>")
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
