"""The delivery protocols: the order in which rows and offsets are stored, and the effect of a crash in between.

| guarantee     | steps                | accepts                                    |
|---------------|----------------------|--------------------------------------------|
| at-most-once  | commit, write        | any sink                                   |
| at-least-once | begin, write, commit | any sink                                   |
| exactly-once  | begin, write, commit | IdempotentSink                             |
| any           | write                | TransactionalSink, with its own offsets    |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.core.sink import IdempotentSink, TransactionalSink
from headrace.errors import UnsupportedGuarantee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.core.offset_store import OffsetStore
    from headrace.core.sink import Sink
    from headrace.types import Batch


REPEATABLE = "a transactional or idempotent sink: sinks.Postgres, sinks.Parquet"
"""Sinks that store a repeated batch once; part of hints."""


class Guarantee(StrEnum):
    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class Step(StrEnum):
    BEGIN = "begin"
    WRITE = "write"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a batch: its bad records, and how many of their dead letters lack the bytes; the size of a record,
    if measured; how many records were read and rows written, None if they could not be counted."""

    dropped: int = 0
    quarantined: int = 0
    left_out: int = 0
    bytes_each: float | None = None
    records: int | None = None
    rows: int | None = None

    @property
    def bytes(self) -> int | None:
        """The size of all records, if they were counted and measured."""
        return None if self.records is None or self.bytes_each is None else round(self.records * self.bytes_each)


def protocol(guarantee: Guarantee, sink: Sink) -> tuple[Step, ...]:
    """The steps that give `guarantee` with `sink`, or UnsupportedGuarantee."""
    if isinstance(sink, TransactionalSink):
        return (Step.WRITE,)
    match guarantee:
        case Guarantee.AT_MOST_ONCE:
            return (Step.COMMIT, Step.WRITE)
        case Guarantee.AT_LEAST_ONCE:
            return (Step.BEGIN, Step.WRITE, Step.COMMIT)
        case Guarantee.EXACTLY_ONCE if isinstance(sink, IdempotentSink):
            return (Step.BEGIN, Step.WRITE, Step.COMMIT)
    raise cannot_repeat(sink, hint=f"use guarantee='at-least-once', or {REPEATABLE}")


def cannot_repeat(sink: Sink, *, hint: str) -> UnsupportedGuarantee:
    """The error for a sink that would store a repeated batch twice."""
    reason = sink.no_exactly_once_reason
    return UnsupportedGuarantee(f"{type(sink).__name__} cannot give {Guarantee.EXACTLY_ONCE}: {reason}", hint=hint)


def deliver(steps: tuple[Step, ...], batch: Batch, write: Callable[[], None], store: OffsetStore) -> Iterator[Step]:
    """Execute `steps` one by one, yielding each before its execution. `write` writes the rows of `batch`.

    The caller drives the iteration; if it stops, that is a crash at this step. An error ends the delivery, and the
    caller must load the store again before any other call.
    """
    for step in steps:
        yield step
        match step:
            case Step.BEGIN:
                store.begin(batch)
            case Step.WRITE:
                write()
            case Step.COMMIT:
                store.commit(batch)


def resume(guarantee: Guarantee, sink: Sink) -> tuple[Step, ...]:
    """The steps for a batch that is pending at the start: it was journalled, and it may or may not have been written.

    At-most-once must not write it again: the run only commits, and the loss is recorded. A transactional sink journals
    nothing, so a batch pending there was begun with another sink, and this sink does not have its rows.
    """
    if isinstance(sink, TransactionalSink):
        return (Step.WRITE,)
    if guarantee is Guarantee.AT_MOST_ONCE:
        return (Step.COMMIT,)
    return (Step.WRITE, Step.COMMIT)
