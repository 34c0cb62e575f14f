"""Splits the ranges of a batch across tasks. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.types import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SPLIT_RECORDS = 50_000
"""Minimum size of a part of a range: a smaller one costs more as a task than it saves."""
MIN_TASK_RECORDS = 10_000
"""Target size of a task of coalesced small ranges."""
_MAX_TASKS_PER_CORE = 4
"""Tasks per core whose overhead is negligible."""


def split(ranges: Sequence[Range], cores: int) -> list[Range]:
    """Split the ranges, in the same order, so that no core waits for one long range."""
    share = max(MIN_SPLIT_RECORDS, -(-sum(map(len, ranges)) // max(1, cores)))
    return [part for r in ranges for part in _cut(r, max(1, round(len(r) / share)))]


def task_count(parts: Sequence[Range], cores: int) -> int:
    """How many tasks should read these parts: fewer than parts if many of them are small."""
    if len(parts) <= _MAX_TASKS_PER_CORE * cores:
        return len(parts)
    enough = -(-sum(map(len, parts)) // MIN_TASK_RECORDS)
    return min(len(parts), max(_MAX_TASKS_PER_CORE * cores, enough))


def _cut(r: Range, count: int) -> list[Range]:
    edges = [r.start + len(r) * index // count for index in range(count + 1)]
    return [Range(r.at, start, until) for start, until in pairwise(edges)]
