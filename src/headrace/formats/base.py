"""Formats whose columns the user gives, and the patterns of times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.core.format import StaticFormat
from headrace.errors import ConfigError
from headrace.formats.columns import to_ddl
from headrace.spark.sql import literal

# With microseconds, as Spark stores them: by default it writes milliseconds.
_WALL_CLOCK = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
TIMESTAMP_PATTERN = f"{_WALL_CLOCK}XXX"
TIME_OPTIONS = {"timestampFormat": TIMESTAMP_PATTERN, "timestampNTZFormat": _WALL_CLOCK}
TIME_OPTIONS_SQL = ", ".join(f"'{name}', \"{pattern}\"" for name, pattern in TIME_OPTIONS.items())
"""The options as arguments of map() in SQL."""


@dataclass(frozen=True, kw_only=True)
class ColumnarFormat(StaticFormat):
    """A format that reads the columns in a Spark DDL string or a StructType. Writing needs no columns."""

    columns: str | Any | None = field(default=None, kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "columns", to_ddl(self.columns, self._name))
        if self.columns is not None and (not isinstance(self.columns, str) or not self.columns.strip()):
            raise ConfigError(f"{self._name}({self.columns!r}) has no columns", hint=self._example)

    def check_reads(self) -> None:
        if self.columns is None:
            raise ConfigError(f"{self._name}() needs its columns to read", hint=self._example)

    def ddl(self) -> str | None:
        columns: str | None = self.columns
        return columns

    def struct(self, more: str) -> str:
        """SQL: a literal of the columns and `more` as one type."""
        return literal(f"STRUCT<{self.columns or ''}\n{more}>")  # the columns may end with a comment

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _example(self) -> str:
        return f'hr.{self._name}("user STRING, page STRING")'
