"""The contract of an offset store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.errors import OffsetConflict
from headrace.resource import Resource

if TYPE_CHECKING:
    from headrace.types import Batch, Progress


class OffsetStore(Resource, ABC):
    """Where one pipeline's offsets live. Every method is atomic: it happened whole or not at all.

    A run calls, in this order: `open` once; `load` once and again after every failure; then per batch
    `begin` and `commit` as its guarantee asks. The delivery never repeats a call whose outcome is unknown
    without a `load` in between, so no method needs to recognise a repeat of itself.

    Adapters raise RetriableError while the system behind them does not answer. `headrace.testing` ships
    the suite that holds an adapter to this contract.
    """

    @abstractmethod
    def load(self) -> Progress:
        """The committed offsets, the pending batch if any, the topic ids and the last batch's id.

        A pipeline never seen before has an empty Progress. Reads what was committed last, never older.
        """

    @abstractmethod
    def begin(self, batch: Batch) -> None:
        """Journal the exact ranges of `batch` as pending, before anything is written.

        A compare-and-set: OffsetConflict if a range does not start at its committed offset, or if another
        batch is pending that does not read the same ranges. A partition never committed accepts any start.
        """

    @abstractmethod
    def commit(self, batch: Batch) -> None:
        """Move every range's offset from its start to its until, and clear the pending batch.

        A compare-and-set over all ranges together: OffsetConflict if any committed offset is not the
        range's start, or if another batch is pending. Also called without `begin`: under at-most-once,
        and with empty ranges to fix the position a new partition is first read from.
        """


def refuse_conflict(progress: Progress, batch: Batch) -> None:
    """The compare of both compare-and-sets: raise OffsetConflict if `batch` may not follow `progress`."""
    pending = progress.pending
    if pending is not None and pending.ranges != batch.ranges:
        raise conflict(batch, f"batch {pending.id} is pending with other ranges")
    if moved := progress.behind(batch):
        first = moved[0]
        raise conflict(batch, f"the store stands at {progress.offsets[first.at]} where {first} would start")


def conflict(batch: Batch, reason: str) -> OffsetConflict:
    return OffsetConflict(
        f"batch {batch.id} was refused: {reason}",
        hint="another run of this pipeline is active; let one of them finish, or stop it",
    )
