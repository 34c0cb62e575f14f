"""How long records waited from their timestamp in Kafka until they were stored, estimated from few offset lookups.

A lookup requests the first record at or after a time from a broker (ListOffsets). Timestamps between two lookups are
interpolated, so no record is read. A record with an older timestamp than a previous record counts as new as that one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.events import ProduceDelay

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.types import Range

RECENT = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""Ages in seconds that are looked up first, for a pipeline that keeps up."""
OLD = (60, 300, 1800, 3 * 3600, 12 * 3600, 2 * 86400, 7 * 86400, 30 * 86400, 365 * 86400)
BETWEEN = 16
"""Lookups within the time span of the records of a range."""
PRECISE_ENOUGH = 0.2
"""The maximum distance of two lookups around a record, as a share of its age."""
_SHORTEST = 0.1
_MAX_ROUNDS = 4
_POINTS = 100
"""Offsets per range whose timestamps are used for the quantiles."""


@dataclass(frozen=True, slots=True)
class _KnownRecord:
    """A record that a lookup found. The records before it are older than `earlier_than`."""

    offset: int
    timestamp: float
    earlier_than: float


class RangeTimestamps:
    """The timestamps of the records of one range, as known from lookups. Times are in seconds since the epoch."""

    def __init__(self, r: Range, now: float) -> None:
        self.range = r
        self._now = now
        self._known: list[_KnownRecord] = []
        """In order of offset."""
        self._no_record_since = now
        self._rounds = 0

    def next_lookups(self) -> list[float]:
        """The times to look up next; empty if enough is known."""
        self._rounds += 1
        if self._rounds == 1:
            return [self._now - age for age in RECENT]
        if self._rounds == 2 and (not self._known or self._known[0].offset > self.range.start):
            return [*(self._now - age for age in OLD), 0.0]
        wide = self._wide_spans() if self._rounds <= _MAX_ROUNDS else []
        each = max(1, BETWEEN // max(1, len(wide)))
        steps = [number / (each + 1) for number in range(1, each + 1)]
        return [since + (until - since) * step for since, until in wide[:BETWEEN] for step in steps]

    def add(self, time: float, first_record: tuple[int, float] | None) -> None:
        """Add a result: the offset and timestamp of the first record at or after `time`; None if there is none."""
        if first_record is None:
            self._no_record_since = min(time, self._no_record_since)
            return
        offset, timestamp = first_record
        index = bisect_left(self._known, offset, key=_offset)
        if index < len(self._known) and self._known[index].offset == offset:
            known = self._known[index]
            self._known[index] = replace(known, earlier_than=min(time, known.earlier_than))
        else:
            self._known.insert(index, _KnownRecord(offset, timestamp, time))

    def at(self, offset: int) -> float | None:
        """The interpolated timestamp of a record of the range; None if nothing is known."""
        if not self._known:
            return None
        index = bisect_right(self._known, offset, key=_offset)
        if index == 0:
            return self._known[0].timestamp
        first, since = self._known[index - 1].offset, self._known[index - 1].timestamp
        until, end = self._end(index)
        return since + max(0.0, end - since) * (offset - first) / (until - first)

    def _end(self, index: int) -> tuple[int, float]:
        """The upper bounds, as offset and time, of the records after the known record before `index`."""
        if index < len(self._known):
            return self._known[index].offset, self._known[index].earlier_than
        return max(self.range.until, self._known[-1].offset + 1), self._no_record_since

    def _wide_spans(self) -> list[tuple[float, float]]:
        """The time spans between two known records that are too wide for a precise estimate."""
        first = max(0, bisect_right(self._known, self.range.start, key=_offset) - 1)
        spans: list[tuple[float, float]] = []
        for index in range(first, bisect_left(self._known, self.range.until, key=_offset)):
            (until, end), known = self._end(index + 1), self._known[index]
            age = self._now - known.timestamp
            if until - known.offset > 1 and end - known.timestamp > max(PRECISE_ENOUGH * age, _SHORTEST):
                spans.append((known.timestamp, end))
        return spans


def _offset(known: _KnownRecord) -> int:
    return known.offset


def estimate(known: Iterable[RangeTimestamps], stored_at: float) -> ProduceDelay | None:
    """The delays of the records of all ranges, stored at `stored_at`; None if a range has no known timestamp."""
    oldest = stored_at
    weighted: list[tuple[float, float]] = []
    for timestamps in known:
        start, records = timestamps.range.start, len(timestamps.range)
        first = timestamps.at(start)
        if first is None:
            return None
        oldest = min(oldest, first)
        offsets = (start + records * (2 * number + 1) // (2 * _POINTS) for number in range(_POINTS))
        weighted += [(stored_at - (timestamps.at(offset) or first), records / _POINTS) for offset in offsets]
    if not weighted:
        return None
    weighted.sort()
    return ProduceDelay(_quantile(weighted, 0.5), _quantile(weighted, 0.99), max(0.0, stored_at - oldest))


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """The value that `share` of the weight does not exceed."""
    sums = list(accumulate(weight for _, weight in weighted))
    return max(0.0, weighted[min(bisect_left(sums, share * sums[-1]), len(sums) - 1)][0])
