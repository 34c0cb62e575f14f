"""The estimate of the produce delay, against logs whose timestamps are known."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from headrace.core.produce_delay import RangeTimestamps, estimate
from headrace.types import Range, TopicPartition

NOW = 1_800_000_000.0


def looked_up(log: list[float], start: int, until: int, partition: int = 0) -> tuple[RangeTimestamps, int]:
    """What is known of a range of a log, given by its timestamps, after all lookups, and their number."""
    known = RangeTimestamps(Range(TopicPartition("clicks", partition), start, until), NOW)
    lookups = 0
    while times := known.next_lookups():
        lookups += len(times)
        for time in times:
            offset = bisect_left(log, time)
            known.add(time, (offset, log[offset]) if offset < len(log) else None)
    return known, lookups


def exact(delays: list[float], share: float) -> float:
    return sorted(delays)[int(share * (len(delays) - 1))]


LOGS = {
    "steady, a second ago": [NOW - 100 + number * 0.01 for number in range(10_000)],
    "one burst": [
        *(NOW - 5000 + number for number in range(1000)),
        *(NOW - 3 + number / 9000 for number in range(9000)),
    ],
    "three days ago": [NOW - 3 * 86400 + number * 0.5 for number in range(10_000)],
    "slower and slower": [NOW - 200 + number**0.5 for number in range(10_000)],
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize(("start", "until"), [(0, 10_000), (9_000, 10_000), (9_990, 10_000), (500, 600), (5000, 5001)])
def test_quantiles_are_within_a_tenth_of_the_exact_ones(log: list[float], start: int, until: int) -> None:
    known, lookups = looked_up(log, start, until)
    delay = estimate([known], NOW + 2)
    assert delay is not None
    delays = [NOW + 2 - timestamp for timestamp in log[start:until]]
    assert delay.p50 == pytest.approx(exact(delays, 0.5), rel=0.1)
    assert delay.p99 == pytest.approx(exact(delays, 0.99), rel=0.1)
    assert delay.max == pytest.approx(max(delays), rel=0.1)
    assert delay.p50 <= delay.p99 <= delay.max
    assert lookups <= 50


def test_partitions_count_by_their_records() -> None:
    slow, _ = looked_up([NOW - 1000 + number * 0.001 for number in range(100)], 0, 100)
    fast, _ = looked_up([NOW - 1 + number * 0.00001 for number in range(9900)], 0, 9900, partition=1)
    delay = estimate([slow, fast], NOW)
    assert delay is not None
    assert delay.p50 == pytest.approx(1, rel=0.1)
    assert delay.max == pytest.approx(1000, rel=0.1)


def test_records_from_the_future_have_no_delay() -> None:
    known, _ = looked_up([NOW + 60, NOW + 61], 0, 2)
    delay = estimate([known], NOW)
    assert delay is not None
    assert (delay.p50, delay.p99, delay.max) == (0, 0, 0)


def test_records_without_timestamps_have_no_estimate() -> None:
    known, _ = looked_up([], 0, 10)
    assert estimate([known], NOW) is None


def test_a_batch_without_records_has_no_estimate() -> None:
    assert estimate([], NOW) is None
