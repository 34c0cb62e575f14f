"""Compares the sent rows with the stored ones as multisets, so that duplicates are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


@dataclass(frozen=True, slots=True)
class Difference:
    """Counts of rows. `phantom` rows were stored but never sent: a corrupted row is one missing and one phantom."""

    missing: int
    duplicate: int
    phantom: int

    def __str__(self) -> str:
        text = f"{self.missing} missing, {self.duplicate} duplicate"
        return f"{text}, {self.phantom} never sent" if self.phantom else text


def compare(sent: Iterable[Hashable], stored: Iterable[Hashable]) -> Difference:
    """Compare the producer's ledger of acknowledged rows with all rows in the sink."""
    wanted, found = Counter(sent), Counter(stored)
    return Difference(
        missing=(wanted - found).total(),
        duplicate=sum(count - wanted[row] for row, count in found.items() if 0 < wanted[row] < count),
        phantom=sum(count for row, count in found.items() if row not in wanted),
    )
