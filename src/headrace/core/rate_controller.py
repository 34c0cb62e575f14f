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
"""How much two batches differ in size, as a part of the larger, where their times tell what a batch costs at least."""


@dataclass(frozen=True, slots=True)
class PidRate:
    """Records per second that the sink keeps up with.

    `records` and `seconds` are of the batch before, and `overhead` what a batch takes whatever is in it, as far as two
    batches of different sizes have told.
    """

    per_second: float
    records: int = 0
    seconds: float = 0.0
    overhead: float = 0.0

    def after(self, records: int, seconds: float, interval: float, *, full: bool) -> PidRate:
        """The rate after a batch. `full`: it had as many records as the rate allowed.

        The error is how much faster this rate is than the batch was. What the batch took beyond the interval counts as
        work left over, as the integral. A batch that was not full and in time says nothing against the rate.
        """
        if records == 0 or seconds <= 0:
            return self
        measured = records / seconds
        if not full and seconds <= interval and measured < self.per_second:
            return self
        overhead = self._overhead(records, seconds)
        if overhead >= interval:
            # No number of records brings such a batch into the interval, and fewer would only be slower: as many as
            # take as long again as the batch itself.
            wanted = records * overhead / max(seconds - overhead, overhead / 2) / interval
            return PidRate(max(wanted, MIN_RATE), records, seconds, overhead)
        error = self.per_second - measured
        late = max(0.0, seconds - interval) * measured / interval
        wanted = self.per_second - PROPORTIONAL * error - INTEGRAL * late
        return PidRate(max(wanted, MIN_RATE), records, seconds, overhead)

    def _overhead(self, records: int, seconds: float) -> float:
        if not self.records or abs(records - self.records) < MIN_SIZE_DIFFERENCE * max(records, self.records):
            return min(self.overhead, seconds)
        each = max(0.0, (seconds - self.seconds) / (records - self.records))
        return seconds - each * records


@dataclass(frozen=True, slots=True)
class BatchSizer:
    """What the batches so far say about the next one, within `limits`."""

    limits: Limits
    rate: PidRate | None = None
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

    def after(self, records: int, seconds: float, weight: float | None) -> BatchSizer:
        """With what a batch of so many records says, which took so long. `weight` is a record's, if it is known."""
        rate, interval = self.rate, self.limits.batch_seconds
        if interval is not None and records and seconds > 0:
            if rate is None:
                rate = PidRate(max(records / seconds, MIN_RATE), records=records, seconds=seconds)
            else:
                rate = rate.after(records, seconds, interval, full=records >= self.budget)
        each = self.bytes_each
        if weight:
            # Large records are believed at once, small ones by and by.
            each = max(weight, (each or 0.0) / 2)
        return replace(self, rate=rate, bytes_each=each)
