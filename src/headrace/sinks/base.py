"""The contract of a sink. The guarantee a sink can give is its type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.resource import Resource
from headrace.stores.base import OffsetStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.types import Batch

METADATA = "_kafka"
"""The struct column with each row's origin. A sink uses it when it is there and never stores it."""


class Sink(Resource, ABC):
    """Where rows go. A plain sink may be at-least-once or at-most-once."""

    @abstractmethod
    def write(self, batch: Batch, rows: DataFrame) -> None:
        """Store the rows of one batch.

        Called once per batch, and again with the same ranges after a failure or a restart. Returns only
        when the rows are durable; raises RetriableError when trying again may help, ConfigError when it
        cannot. `rows` is lazy: reading it runs the transform on the executors.
        """


class IdempotentSink(Sink):
    """A sink for which the same batch twice leaves the same result as once."""


class TransactionalSink(Sink, OffsetStore):
    """A sink that keeps the offsets beside the rows: `write` moves both in one transaction.

    `write` compare-and-sets like `commit` does and raises OffsetConflict, with nothing written, when the
    offsets are not at the start of the batch. A run never calls `begin`: the transaction is the journal.
    """


def without_metadata(rows: DataFrame) -> DataFrame:
    """The columns that belong into the target."""
    return rows.drop(METADATA)
