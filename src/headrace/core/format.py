"""The contract of a format."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.core.error_markers import UNKNOWN_SCHEMA
from headrace.support.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

OnError = Literal["fail", "drop", "keep"]
Part = Literal["key", "value"]
HIDDEN = "_headrace_"
"""Prefix of internal fields of a decoded struct; they do not become columns."""
CORRUPT = f"{HIDDEN}corrupt"
"""The field in which Spark stores a text that it could not parse."""


class Decoding(ABC):
    """SQL expressions that turn the keys or the values of one run into columns.

    The decoder evaluates them per record, in this order:

    1. `prevalidate_expr` reads the bytes only and rejects a record before it is decoded.
    2. `decode_expr` decodes; with `on_error="fail"` the faster `strict_decode_expr` decodes, if there is one.
    3. `is_valid_expr`, or else `error_expr`, decides whether the decoded record is valid.
    4. `row_expr` selects the columns of a valid record.
    5. `misfit_expr` names the wrong field of a bad record. It may be slow: it runs for bad records only.

    With `on_error="fail"` a bad record fails the batch, and the decoder reads the batch again with `decode_expr` and
    `error_expr` to find the record. With "drop", "keep" and dead letters they are used from the start.
    """

    single = False
    """Whether there is one column, `value`. A decoded key is then this value instead of a struct."""

    @abstractmethod
    def decode_expr(self, source: str) -> str:
        """SQL over the column `source` (BINARY): a struct; NULL, or a struct of NULLs, for a bad or absent record."""

    def strict_decode_expr(self, source: str) -> str | None:
        """SQL like `decode_expr`, but faster: it fails on a bad record or returns NULL, without the reason.

        None: the format has no faster expression.
        """
        return None

    def prevalidate_expr(self, source: str) -> str | None:
        """SQL over the bytes in `source`: the reason why a record is bad, or NULL if it can be decoded.

        A format that implements this implements `error_expr` as well.
        """
        return None

    @abstractmethod
    def error_expr(self, source: str, decoded: str) -> str | None:
        """SQL: the reason why a prevalidated record is bad, NULL for a valid one. None: no record is bad."""

    def misfit_expr(self, source: str, error: str) -> str | None:
        """SQL: which field does not match its type, if `error` (SQL) says that one does not; else NULL.

        None: the format has no more detail than `error`.
        """
        return None

    def is_valid_expr(self, source: str, decoded: str) -> str | None:
        """SQL: whether the decoded record is valid; faster than `error_expr`. Not used for records without a value.

        `decoded` comes from `strict_decode_expr` where the format has one. None: only `error_expr` decides.
        """
        return None

    def row_expr(self, decoded: str) -> str:
        """SQL: the struct of the columns, either `decoded` itself or a field of it."""
        return decoded


class SchemaLookupDecoding(Decoding):
    """A decoding whose records carry a schema id that a registry resolves.

    A batch with an unknown id fails (`raise_unknown_schema_expr`). The driver then collects the unknown ids of the
    batch (`unknown_schema_filter`), requests them from the registry (`fetch_schemas`) and repeats the batch.
    """

    def __init__(self) -> None:
        self.decoder_id = secrets.token_hex(8)  # part of the error, so that only this decoding fetches the schema

    @abstractmethod
    def unknown_schema_filter(self, source: str) -> tuple[str, str]:
        """SQL: whether a record has a schema id that is unknown or absent from the registry; and SQL of the id."""

    @abstractmethod
    def fetch_schemas(self, named: Mapping[int, Collection[str]]) -> str:
        """Request schema ids, most frequent first, each with the topics whose records carry it. Return a summary.

        Afterwards all these ids are known. If they exceed the limit per batch, records with the other ids are bad.
        RetriableError if the registry does not answer.
        """

    def start_batch(self) -> None:
        """A new batch begins: ids over the limit of the last batch may be requested again."""
        return

    def raise_unknown_schema_expr(self, schema_id: str) -> str:
        """SQL that fails the batch; `schema_id` is SQL of the unknown id."""
        payload = f"named_struct('token', '{self.decoder_id}', 'id', {schema_id}, 'topic', topic)"
        return f"raise_error(concat('{UNKNOWN_SCHEMA}', to_json({payload})))"


@dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """How a record's key or value becomes columns, and what happens to one that does not parse.

    `on_error`: "fail" stops the batch with BadRecord, naming the record and its bytes; "drop" leaves the record
    out and counts it; "keep" passes it on with null columns and the struct column `bad` (error, value) set.
    """

    on_error: OnError = "fail"

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, get_args(OnError))

    def check_reads(self) -> None:
        """Raise ConfigError if the format can only write."""
        return

    def check(self, part: Part, topics: Sequence[str]) -> None:
        """Check what needs no Spark. ConfigError if it cannot work, RetriableError if a registry does not answer."""
        return

    def ddl(self) -> str | None:
        """The columns as a Spark DDL string, for formats that take them in this form."""
        return None

    @abstractmethod
    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        """The decoding of one run. May request schemas from a registry: RetriableError if it does not answer."""

    @abstractmethod
    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """SQL over a row's columns: the bytes (BINARY) of a record's value. ConfigError if it cannot encode them.

        `columns` maps names to types in Spark's JSON notation; `topic` is the target topic, None for several topics.
        """

    def dry_run_encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """The same expression for `headrace check` and previews: registers no schema."""
        return self.encode_expr(columns, topic)


@dataclass(frozen=True, kw_only=True)
class StaticFormat(Format, Decoding):
    """A format that decodes without any state of a run."""

    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        return self
