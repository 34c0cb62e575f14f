"""Converts the rows of one task to Python values, and collects those that a sink rejects."""

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
    """Collects rejected rows. `limit` rows may be rejected; None: none."""

    sink: str
    limit: int | None
    rows: list[tuple[RecordId, str]] = field(default_factory=list)

    def add(self, origin: RecordId | None, reason: str) -> None:
        """Add a row; BadRecord if it has no origin or the limit is exceeded."""
        reason = shortened(reason)  # the reason may quote a large value, and each one is sent to the driver
        if origin is None:
            raise rejected_row_error(
                self.sink, reason, hint=f"keep {METADATA} in the transform: it tells which record that was"
            )
        if self.limit is None:
            raise rejected_row_error(self.sink, f"the row of {origin}: {reason}")
        self.rows.append((origin, reason))
        if len(self.rows) > self.limit:
            raise too_many_bad_records(self.limit, f"{self.rows[0][0]}: {self.rows[0][1]}")

    def accept(self, piece: Any) -> Iterator[tuple[RecordId | None, dict[str, Any]]]:
        """The rows of an Arrow batch with ORIGIN_COLUMNS, each with the id of its record.

        Rejects rows with a value that Python cannot represent, such as a date after 9999.
        """
        try:
            rows = piece.to_pylist()
        except (ValueError, OverflowError) as error:
            if len(piece) == 1:
                self.add(
                    _origin(*(piece.column(name)[0].as_py() for name in ORIGIN_COLUMNS)), f"it cannot be read: {error}"
                )
                return
            yield from self.accept(piece.slice(0, len(piece) // 2))
            yield from self.accept(piece.slice(len(piece) // 2))
        else:
            for values in rows:
                yield _origin(*(values.pop(name) for name in ORIGIN_COLUMNS)), values


def _origin(topic: str | None, partition: int, offset: int) -> RecordId | None:
    return None if topic is None else RecordId(topic, partition, offset)
