"""The rows of one task that a sink takes, as Python values, and those that it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.dead_letters import RecordId, rejected_row_error, shortened, too_many_bad_records
from headrace.core.sink import METADATA
from headrace.spark.origin_columns import ORIGIN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class RejectedRows:
    """`most` rows may be refused; None: not one."""

    sink: str
    most: int | None
    found: list[tuple[RecordId, str]] = field(default_factory=list)

    def add(self, origin: RecordId | None, why: str) -> None:
        """Note it, or raise BadRecord."""
        why = shortened(why)  # what quotes a large value would pass through the driver for each row
        if origin is None:
            raise rejected_row_error(
                self.sink, why, hint=f"keep {METADATA} in the transform: it tells which record that was"
            )
        if self.most is None:
            raise rejected_row_error(self.sink, f"the row of {origin}: {why}")
        self.found.append((origin, why))
        if len(self.found) > self.most:
            raise too_many_bad_records(self.most, f"{self.found[0][0]}: {self.found[0][1]}")

    def taken(self, piece: Any) -> Iterator[tuple[RecordId | None, dict[str, Any]]]:
        """The rows of an Arrow batch that has ORIGIN_COLUMNS, each with the record it came from.

        One with a value that Python has none for, such as a date after 9999, is refused.
        """
        try:
            found = piece.to_pylist()
        except (ValueError, OverflowError) as error:
            if len(piece) == 1:
                self.add(
                    _origin(*(piece.column(name)[0].as_py() for name in ORIGIN_COLUMNS)), f"it cannot be read: {error}"
                )
                return
            yield from self.taken(piece.slice(0, len(piece) // 2))
            yield from self.taken(piece.slice(len(piece) // 2))
        else:
            for values in found:
                yield _origin(*(values.pop(name) for name in ORIGIN_COLUMNS)), values


def _origin(topic: str | None, partition: int, offset: int) -> RecordId | None:
    return None if topic is None else RecordId(topic, partition, offset)
