"""How many records the next batch should have, with sinks that are simulated."""

import pytest

from headrace.core.planner import Limits
from headrace.core.rate_controller import BatchSizer


def batches(sink, count, **limits):
    """The sizes of so many batches, each of which takes as long as `sink(number, size)` says."""
    flow, sizes = BatchSizer(Limits(batch_seconds=1.0, **limits)), []
    for number in range(count):
        sizes.append(flow.budget)
        flow = flow.update(sizes[-1], sink(number, sizes[-1]), None)
    return sizes


@pytest.mark.parametrize("per_second", [5, 100, 10_000])
def test_a_batch_takes_the_time_it_should(per_second):
    assert batches(lambda _, size: size / per_second, 20)[-1] == pytest.approx(per_second, rel=0.02)


def test_the_fixed_time_of_each_batch_counts():
    assert batches(lambda _, size: 0.3 + size / 10_000, 20)[-1] == pytest.approx(7_000, rel=0.02)


def test_a_batch_that_cannot_be_in_time_does_not_shrink_to_nothing():
    sizes = batches(lambda _, size: 1.2 + size / 10_000, 20)
    assert min(sizes) > 4_000
    assert sizes[-1] == 12_000, "as many as take as long again as the batch itself"


def test_a_sink_that_becomes_quick_again_gets_its_batches_in_time():
    sizes = batches(lambda number, size: (1.2 if number < 10 else 0.1) + size / 10_000, 30)
    assert sizes[-1] == pytest.approx(9_000, rel=0.02)


def test_a_sink_that_becomes_slow_for_each_record_gets_few():
    sizes = batches(lambda number, size: 0.1 + size / (10_000 if number < 10 else 100), 30)
    assert sizes[-1] == pytest.approx(90, rel=0.05)
