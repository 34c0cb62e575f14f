"""How the ranges of a batch are dealt out to tasks. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.types import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SPLIT_RECORDS = 50_000
"""Records that a piece of a range has at least: below, a task costs more than it saves."""
MIN_TASK_RECORDS = 10_000
"""Records that a task should have at least where many small ranges are packed."""
_MAX_TASKS_PER_CORE = 4
"""Tasks for each core that are no trouble yet."""


def split(ranges: Sequence[Range], cores: int) -> list[Range]:
    """The same records in the same order, in pieces such that no core waits for one long range."""
    share = max(MIN_SPLIT_RECORDS, -(-sum(map(len, ranges)) // max(1, cores)))
    return [piece for whole in ranges for piece in _cut(whole, max(1, round(len(whole) / share)))]


def tasks(pieces: Sequence[Range], cores: int) -> int:
    """How many tasks should read so many pieces: fewer, where many have little in them."""
    if len(pieces) <= _MAX_TASKS_PER_CORE * cores:
        return len(pieces)
    enough = -(-sum(map(len, pieces)) // MIN_TASK_RECORDS)
    return min(len(pieces), max(_MAX_TASKS_PER_CORE * cores, enough))


def _cut(whole: Range, count: int) -> list[Range]:
    edges = [whole.start + len(whole) * number // count for number in range(count + 1)]
    return [Range(whole.at, start, until) for start, until in pairwise(edges)]
