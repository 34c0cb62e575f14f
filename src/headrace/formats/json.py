"""JSON objects by a schema."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import ConfigError
from headrace.formats.base import Format, literal

_CORRUPT = "_headrace_corrupt"
_TEXT = "CAST(value AS STRING)"
# The first test is what nearly every record passes; trimming copies the text.
_OBJECT = f"startswith({_TEXT}, '{{') OR startswith(ltrim(' \\t\\r\\n', {_TEXT}), '{{')"


@dataclass(frozen=True, kw_only=True)
class Json(Format):
    """One JSON object per record; `columns` is a Spark DDL string such as `"user STRING, at TIMESTAMP"`.

    Missing fields are NULL and unknown fields ignored. Bad are: text that is not JSON, something else than an
    object, and a field that does not fit its type. A tombstone (no value) gives a row of NULLs.
    """

    columns: str = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.columns, str) or not self.columns.strip():
            raise ConfigError("Json() needs its columns", hint='hr.Json("user STRING, page STRING")')

    def schema(self) -> str:
        return self.columns

    def decoded(self) -> str:
        columns = literal(f"{self.columns.rstrip().rstrip(',')}, {_CORRUPT} STRING")
        options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
        return f"from_json({_TEXT}, {columns}, {options})"

    def error(self) -> str | None:
        # Spark reads an array as its first object and blank text as nothing, both without a word.
        return (
            "CASE WHEN value IS NULL THEN NULL"
            f" WHEN NOT is_valid_utf8({_TEXT}) THEN 'not UTF-8 text'"
            f" WHEN NOT ({_OBJECT}) THEN 'not a JSON object'"
            f" WHEN decoded IS NULL OR decoded.{_CORRUPT} IS NOT NULL"
            " THEN 'not JSON, or a field does not fit its type' END"
        )
