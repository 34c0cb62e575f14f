"""Values taken as they are: text, or bytes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.formats.base import Format


@dataclass(frozen=True, kw_only=True)
class Text(Format):
    """UTF-8 text in one column `value STRING`. Bytes that are not UTF-8 are a bad record."""

    def schema(self) -> str:
        return "value STRING"

    def decoded(self) -> str:
        return "named_struct('value', CAST(value AS STRING))"

    def error(self) -> str | None:
        return "CASE WHEN NOT is_valid_utf8(CAST(value AS STRING)) THEN 'not UTF-8 text' END"


@dataclass(frozen=True, kw_only=True)
class Bytes(Format):
    """The untouched bytes in one column `value BINARY`. No record is ever bad."""

    def schema(self) -> str:
        return "value BINARY"

    def decoded(self) -> str:
        return "named_struct('value', value)"

    def error(self) -> str | None:
        return None
