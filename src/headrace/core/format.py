"""The contract of a format."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

OnError = Literal["fail", "drop", "keep"]
Part = Literal["key", "value"]
HIDDEN = "_headrace_"
"""Fields of a decoded struct whose names begin so are no columns."""
CORRUPT = f"{HIDDEN}corrupt"
"""The one in which Spark puts a text that it could not parse."""
UNKNOWN = "headrace.UnknownSchema:"
"""Stands in the error of a batch that met a schema which was not known when its expressions were made."""
UNFIT = "headrace.Unfit: "
"""Stands in the error of a batch with a row that a format has no bytes for; behind it, why."""


class Decoding(ABC):
    """How the keys or the values of one run become columns."""

    single = False
    """Whether there is one column, `value`. As a key it is that value, and not a struct."""

    @abstractmethod
    def decoded(self, source: str) -> str:
        """SQL over the column `source` (BINARY): a struct. NULL, or a struct of NULLs, where there is nothing."""

    def failing(self, source: str) -> str | None:
        """SQL like `decoded`, quicker, that fails at a bad record or gives NULL for it, but never says which it was.

        None: there is nothing quicker.
        """
        return None

    def shape(self, source: str) -> str | None:
        """SQL over `source` alone: why a record is bad, as far as its bytes tell; NULL for one to be decoded.

        A format that has this has an `error` too.
        """
        return None

    @abstractmethod
    def error(self, source: str, decoded: str) -> str | None:
        """SQL: why a record of the right shape is bad, NULL for a good one. None: it never is."""

    def explained(self, source: str, error: str) -> str | None:
        """SQL: which field does not fit, of a record whose `error` (SQL) says that one does not; else NULL.

        Asked of bad records alone, so it may be slow. None: the format cannot tell more than `error` does.
        """
        return None

    def good(self, source: str, decoded: str) -> str | None:
        """SQL: whether what was decoded, after `failing` where there is one, is good: quicker than `error`.

        None: only that tells. Not asked of a record without a value.
        """
        return None

    def row(self, decoded: str) -> str:
        """SQL: the struct of the columns, which is `decoded` or a field of it."""
        return decoded


class SchemaLookupDecoding(Decoding):
    """One whose records name schemas, which a registry tells. A batch that meets an unknown one fails; it is repeated
    when the registry has been asked."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)  # by which a failed batch says who has to ask

    @abstractmethod
    def named(self, source: str) -> tuple[str, str]:
        """SQL: whether a record names a schema that is not known, or not there, and the id of it."""

    @abstractmethod
    def learn(self, named: Mapping[int, Collection[str]]) -> str:
        """Ask for schemas, each with the topics whose records name it, the ones named most often first. Says what was
        found; from then on all are known, or, where they were too many, the records that name the others are bad.

        RetriableError if nobody answers.
        """

    def renew(self) -> None:
        """A new batch begins: what `learn` left out of the last one may be asked for again."""
        return

    def unknown(self, number: str) -> str:
        """SQL that fails the batch; `number` is SQL for the id of a schema that is not known."""
        found = f"named_struct('token', '{self.token}', 'id', {number}, 'topic', topic)"
        return f"raise_error(concat('{UNKNOWN}', to_json({found})))"


@dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """How a record's key or value becomes columns, and what happens to one that does not parse.

    `on_error`: "fail" stops the batch with BadRecord, naming the record and its bytes; "drop" leaves the record
    out and counts it; "keep" passes it on with null columns and the struct column `bad` (error, value) set.
    """

    on_error: OnError = "fail"

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ConfigError(f"on_error={self.on_error!r} is unknown", hint='on_error="fail", "drop" or "keep"')

    def check_reads(self) -> None:
        """ConfigError if it can only write."""
        return

    def check(self, part: Part, topics: Sequence[str]) -> None:
        """ConfigError for what can be found without Spark, RetriableError if a registry does not answer."""
        return

    def ddl(self) -> str | None:
        """The decoded columns as a Spark DDL string, where they are given so."""
        return None

    @abstractmethod
    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        """What decodes in one run. Here a registry is asked, if there is one: RetriableError if it does not answer."""

    @abstractmethod
    def encoded(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """SQL over a row's columns: the bytes (BINARY) of a record's value. ConfigError if they cannot be encoded so.

        `columns` gives each one's type as Spark's JSON of a schema has it; `topic` is where the records go, if to one.
        """

    def tried(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """The same for those who only look: no schema is registered."""
        return self.encoded(columns, topic)


@dataclass(frozen=True, kw_only=True)
class StaticFormat(Format, Decoding):
    """A format whose description is all that it needs to decode."""

    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        return self
