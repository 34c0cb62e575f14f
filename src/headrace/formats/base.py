"""The contract of a format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    @abstractmethod
    def encoded(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """SQL over a row's columns: the bytes (BINARY) of a record's value. ConfigError if they cannot be encoded so.

        `columns` gives each one's type as Spark's JSON of a schema has it; `topic` is where the records go, if to one.
        """


def literal(text: str) -> str:
    """`text` as a SQL string literal of Spark."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
