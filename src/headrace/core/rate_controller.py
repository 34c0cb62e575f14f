"""Controls the size of batches: a PI controller over the time that batches take. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.core.planner import Limits

PROPORTIONAL = 1.0
INTEGRAL = 0.2
MIN_RATE = 1.0
"""Lower bound of the rate in records per second, so that a sink that stalled can show that it has recovered."""
MIN_SIZE_DIFFERENCE = 0.2
"""Minimum difference of two batches, as a share of the larger one, to estimate the overhead from their times."""


@dataclass(frozen=True, slots=True)
class PiRate:
    """Records per second that the sink keeps up with.

    `records` and `seconds` are those of the last batch. `overhead` is the time that a batch of any size takes,
    estimated from two batches of different sizes.
    """

    per_second: float
    records: int = 0
    seconds: float = 0.0
    overhead: float = 0.0

    def update(self, records: int, seconds: float, interval: float, *, full: bool) -> PiRate:
        """The rate after a batch. `full`: it had as many records as the rate allowed.

        The error is the difference between this rate and the rate of the batch. The time of the batch beyond the
        interval counts as unfinished work, the integral. A batch that was in time but not full never lowers the rate.
        """
        if records == 0 or seconds <= 0:
            return self
        measured = records / seconds
        if not full and seconds <= interval and measured < self.per_second:
            return self
        overhead = self._overhead(records, seconds)
        if overhead >= interval:
            # No number of records makes such a batch fit the interval, and fewer would only be slower: choose the size
            # for which processing takes as long as the overhead.
            per_second = records * overhead / max(seconds - overhead, overhead / 2) / interval
            return PiRate(max(per_second, MIN_RATE), records, seconds, overhead)
        error = self.per_second - measured
        late = max(0.0, seconds - interval) * measured / interval
        per_second = self.per_second - PROPORTIONAL * error - INTEGRAL * late
        return PiRate(max(per_second, MIN_RATE), records, seconds, overhead)

    def _overhead(self, records: int, seconds: float) -> float:
        if not self.records or abs(records - self.records) < MIN_SIZE_DIFFERENCE * max(records, self.records):
            return min(self.overhead, seconds)
        per_record = max(0.0, (seconds - self.seconds) / (records - self.records))
        return seconds - per_record * records


@dataclass(frozen=True, slots=True)
class BatchSizer:
    """The size of the next batch within `limits`, from the batches so far."""

    limits: Limits
    rate: PiRate | None = None
    bytes_each: float | None = None

    @property
    def budget(self) -> int:
        """The maximum number of records of the next batch."""
        limits = self.limits
        records = limits.max_records
        if limits.batch_seconds is not None:
            allowed = limits.first_records if self.rate is None else int(self.rate.per_second * limits.batch_seconds)
            records = min(records, max(1, allowed))
        if limits.max_bytes is not None:
            allowed = limits.first_records if self.bytes_each is None else int(limits.max_bytes / self.bytes_each)
            records = min(records, max(1, allowed))
        return records

    def update(self, records: int, seconds: float, bytes_each: float | None) -> BatchSizer:
        """The sizer after a batch of so many records in so many seconds, with `bytes_each` per record, if known."""
        rate, interval = self.rate, self.limits.batch_seconds
        if interval is not None and records and seconds > 0:
            if rate is None:
                rate = PiRate(max(records / seconds, MIN_RATE), records=records, seconds=seconds)
            else:
                rate = rate.update(records, seconds, interval, full=records >= self.budget)
        if bytes_each:
            # Adapt to larger records at once, to smaller ones gradually.
            bytes_each = max(bytes_each, (self.bytes_each or 0.0) / 2)
        return replace(self, rate=rate, bytes_each=bytes_each or self.bytes_each)
