"""Batches recognised by their number: what a sink that remembers only the newest one may do with the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import OffsetConflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.types import Batch


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The newest batch that a sink holds of one pipeline; 0 when it holds none.

    `fingerprint` may be the beginning of one, where a system has no room for more.
    """

    id: int = 0
    fingerprint: str = ""

    def holds(self, batch: Batch, where: object) -> bool:
        """Whether `batch` is stored already. OffsetConflict when another run has gone on without this one.

        Ids only grow, also when offsets are moved by hand and when the offset store is lost (`last_batch`): so a
        lower id, or the same id over other ranges, comes from a run that does not know what its successor did.
        """
        if batch.id > self.id:
            return False
        if batch.id == self.id and self.fingerprint and batch.fingerprint.startswith(self.fingerprint):
            return True
        raise self.conflict(batch, where)

    def conflict(self, batch: Batch, where: object) -> OffsetConflict:
        return OffsetConflict(
            f"batch {batch.id} ({batch.fingerprint}) comes too late: {where} holds batch {self.id}"
            f" ({self.fingerprint}) of this pipeline; nothing was written",
            hint="is the pipeline running twice? Stop one of the two",
        )


def newer_batch(folders: Iterable[str], before: int, after: int, keep: str) -> list[str]:
    """Those of `folders` (`<batch id>-…`) whose batches can no longer be committed: between two committed ids.

    A live run may be writing one of them; its commit would be refused. Of older ids nothing is named: some folder of
    each is part of the table, or of its past.
    """
    numbered = ((name, name.partition("-")[0]) for name in folders if name != keep)
    return [name for name, number in numbered if number.isdigit() and before < int(number) <= after]
