"""The contract of a format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.errors import ConfigError

OnError = Literal["fail", "drop", "keep"]


@dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """How a record's value becomes columns, and what happens to one that does not parse.

    `on_error`: "fail" stops the batch with BadRecord, naming the record and its bytes; "drop" leaves the record
    out and counts it; "keep" passes it on with null columns and the struct column `bad` (error, value) set.
    """

    on_error: OnError = "fail"

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ConfigError(f"on_error={self.on_error!r} is unknown", hint='on_error="fail", "drop" or "keep"')

    @abstractmethod
    def schema(self) -> str:
        """The decoded columns, as a Spark DDL string."""

    @abstractmethod
    def decoded(self) -> str:
        """SQL over the column `value` (BINARY): a struct whose first fields are those of `schema()`."""

    @abstractmethod
    def error(self) -> str | None:
        """SQL over `value` and `decoded`: why the record is bad, NULL for a good one. None: it never is."""


def literal(text: str) -> str:
    """`text` as a SQL string literal of Spark."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
