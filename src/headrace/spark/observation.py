"""What Spark counted on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Observation


def observe_batch(observation: Observation, name: str) -> int | None:
    """The number of that name; None if nothing has read the frame, where asking would wait for ever."""
    java: Any = observation._jo
    if java is None or not java.future().isCompleted():
        return None
    count = observation.get[name]
    return None if count is None else int(count)
