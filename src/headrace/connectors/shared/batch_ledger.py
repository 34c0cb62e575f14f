"""Recognises batches by their id, for sinks that store only the id of the newest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import OffsetConflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.types import Batch


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The newest batch of one pipeline that a sink has stored; id 0: none.

    `fingerprint` may be truncated, if a system cannot store all of it.
    """

    id: int = 0
    fingerprint: str = ""

    def holds(self, batch: Batch, sink: object) -> bool:
        """Whether `batch` is stored already. OffsetConflict if another run has stored a later one.

        Ids only grow, also if offsets are moved manually or the offset store is lost (`last_batch`). So a lower id, or
        the same id with other ranges, comes from a run that another run has overtaken.
        """
        if batch.id > self.id:
            return False
        if batch.id == self.id and self.fingerprint and batch.fingerprint.startswith(self.fingerprint):
            return True
        raise self.conflict(batch, sink)

    def conflict(self, batch: Batch, sink: object) -> OffsetConflict:
        return OffsetConflict(
            f"batch {batch.id} ({batch.fingerprint}) comes too late: {sink} holds batch {self.id}"
            f" ({self.fingerprint}) of this pipeline; nothing was written",
            hint="if the pipeline runs twice, stop one of the two",
        )


def abandoned_folders(folders: Iterable[str], before: int, after: int, keep: str) -> list[str]:
    """Those of `folders` (`<batch id>-…`) whose batches can no longer be committed: between two committed ids.

    A live run may be writing one of them, but its commit would be refused. Folders of older ids are kept: one of each
    is part of the table or of its history.
    """
    numbered = ((name, name.partition("-")[0]) for name in folders if name != keep)
    return [name for name, number in numbered if number.isdigit() and before < int(number) <= after]
