"""Formats that leave values unchanged, as text or as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.format import Format, StaticFormat
from headrace.errors import ConfigError
from headrace.spark.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Text(StaticFormat):
    """UTF-8 text in one column `value STRING`. Bytes that are not UTF-8 are a bad record."""

    single = True

    def decode_expr(self, source: str) -> str:
        return f"named_struct('value', CAST({source} AS STRING))"

    def error_expr(self, source: str, decoded: str) -> str | None:
        return f"CASE WHEN NOT is_valid_utf8({decoded}.value) THEN 'not UTF-8 text' END"

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        return f"CAST({single_column(self, columns, 'string')} AS BINARY)"


@dataclass(frozen=True, kw_only=True)
class Bytes(StaticFormat):
    """The untouched bytes in one column `value BINARY`. No record is ever bad."""

    single = True

    def decode_expr(self, source: str) -> str:
        return f"named_struct('value', {source})"

    def error_expr(self, source: str, decoded: str) -> str | None:
        return None

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        return single_column(self, columns, "binary")


def single_column(fmt: Format, columns: Mapping[str, Any], kind: str) -> str:
    """The only column, or the one called value if there are several. It must have the type `kind`."""
    name = next(iter(columns)) if len(columns) == 1 else "value"
    if columns.get(name) != kind:
        found = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        raise ConfigError(
            f"{type(fmt).__name__}() writes one column, value {kind.upper()}; the rows have: {found}",
            hint=f"select it in the transform: CAST(… AS {kind.upper()}) AS value; or hr.Json()",
        )
    return quoted(name)
