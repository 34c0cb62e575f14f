"""The delivery protocols: in which order rows and offsets move, and what a crash in between means.

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
    """What became of a batch: its bad records, and how many of their letters are without bytes; the size of a record,
    where it was measured; how many records were read and rows written, None where they could not be counted."""

    dropped: int = 0
    quarantined: int = 0
    left_out: int = 0
    bytes_each: float | None = None
    records: int | None = None
    rows: int | None = None

    @property
    def bytes(self) -> int | None:
        """The size of all records, where they were counted and measured."""
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
    raise UnsupportedGuarantee(
        f"{type(sink).__name__} cannot give {guarantee}: {sink.no_exactly_once_reason}",
        hint="use guarantee='at-least-once', or a transactional or idempotent sink: sinks.Postgres, sinks.Parquet",
    )


def deliver(steps: tuple[Step, ...], batch: Batch, write: Callable[[], None], store: OffsetStore) -> Iterator[Step]:
    """Carry out `steps` one by one, yielding each before it is taken. `write` writes the rows of `batch`.

    The caller drives: to stop iterating is to crash there. An error ends the delivery; the caller loads the
    store again before it does anything else.
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
    """The steps for a batch found pending at start: it was journalled, and may or may not be written.

    A run that promises at-most-once may not write it again: it commits and the loss is recorded. In a transactional
    sink, which journals nothing, it was begun with another one: this one does not have it.
    """
    if isinstance(sink, TransactionalSink):
        return (Step.WRITE,)
    if guarantee is Guarantee.AT_MOST_ONCE:
        return (Step.COMMIT,)
    return (Step.WRITE, Step.COMMIT)
