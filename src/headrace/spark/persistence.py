"""Keeps the rows of a batch that is read more than once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import StorageLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


@contextmanager
def persisted(rows: DataFrame) -> Iterator[None]:
    """Within the block Spark caches the rows, in memory or, if that is too small, on disk."""
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        rows.unpersist()
