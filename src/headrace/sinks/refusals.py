"""The rows of one task that a sink does not take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.letters import too_many
from headrace.sinks.base import METADATA
from headrace.sinks.tables import refused

if TYPE_CHECKING:
    from headrace.letters import Origin


@dataclass(slots=True)
class Refusals:
    """`most` rows may be refused; None: not one."""

    sink: str
    most: int | None
    found: list[tuple[Origin, str]] = field(default_factory=list)

    def add(self, origin: Origin | None, why: str) -> None:
        """Note it, or raise BadRecord."""
        if origin is None:
            raise refused(self.sink, why, hint=f"keep {METADATA} in the transform: it tells which record that was")
        if self.most is None:
            raise refused(self.sink, f"the row of {origin}: {why}")
        self.found.append((origin, why))
        if len(self.found) > self.most:
            raise too_many(self.most, f"{self.found[0][0]}: {self.found[0][1]}")
