"""How many records the next batch should have: a PI controller over the time that batches take. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.core.planner import Limits

PROPORTIONAL = 1.0
INTEGRAL = 0.2
MIN_RATE = 1.0
"""Records per second that the rate does not fall below: a sink that stalls must be able to show that it recovered."""
MIN_SIZE_DIFFERENCE = 0.2
"""The share of the larger one by which two batches must differ, before their times give an estimate of the overhead."""


@dataclass(frozen=True, slots=True)
class PiRate:
    """Records per second that the sink keeps up with.

    `records` and `seconds` are those of the last batch. `overhead` is the time that a batch takes whatever its size, as
    estimated from two batches of different sizes.
    """

    per_second: float
    records: int = 0
    seconds: float = 0.0
    overhead: float = 0.0

    def update(self, records: int, seconds: float, interval: float, *, full: bool) -> PiRate:
        """The rate after a batch. `full`: it had as many records as the rate allowed.

        The error is how much faster this rate is than the batch was. What the batch took beyond the interval counts as
        work left over, as the integral. A batch that was not full and in time does not lower the rate.
        """
        if records == 0 or seconds <= 0:
            return self
        measured = records / seconds
        if not full and seconds <= interval and measured < self.per_second:
            return self
        overhead = self._overhead(records, seconds)
        if overhead >= interval:
            # No number of records brings such a batch into the interval, and fewer would only be slower: take as many
            # as need the same time again.
            wanted = records * overhead / max(seconds - overhead, overhead / 2) / interval
            return PiRate(max(wanted, MIN_RATE), records, seconds, overhead)
        error = self.per_second - measured
        late = max(0.0, seconds - interval) * measured / interval
        wanted = self.per_second - PROPORTIONAL * error - INTEGRAL * late
        return PiRate(max(wanted, MIN_RATE), records, seconds, overhead)

    def _overhead(self, records: int, seconds: float) -> float:
        if not self.records or abs(records - self.records) < MIN_SIZE_DIFFERENCE * max(records, self.records):
            return min(self.overhead, seconds)
        each = max(0.0, (seconds - self.seconds) / (records - self.records))
        return seconds - each * records


@dataclass(frozen=True, slots=True)
class BatchSizer:
    """What the batches so far say about the next one, within `limits`."""

    limits: Limits
    rate: PiRate | None = None
    bytes_each: float | None = None

    @property
    def budget(self) -> int:
        """The most records of the next batch."""
        limits = self.limits
        most = limits.max_records
        if limits.batch_seconds is not None:
            allowed = limits.first_records if self.rate is None else int(self.rate.per_second * limits.batch_seconds)
            most = min(most, max(1, allowed))
        if limits.max_bytes is not None:
            allowed = limits.first_records if self.bytes_each is None else int(limits.max_bytes / self.bytes_each)
            most = min(most, max(1, allowed))
        return most

    def update(self, records: int, seconds: float, bytes_each: float | None) -> BatchSizer:
        """The sizer after a batch of so many records that took so long; a record of it had `bytes_each`, if known."""
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
