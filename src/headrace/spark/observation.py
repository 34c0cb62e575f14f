"""Reads the metrics of a Spark Observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Observation


def observed_metric(observation: Observation, name: str) -> int | None:
    """The metric `name`; None if the frame has not been read yet, when Spark's own getter would block."""
    handle: Any = observation._jo
    if handle is None or not handle.future().isCompleted():
        return None
    value = observation.get[name]
    return None if value is None else int(value)
