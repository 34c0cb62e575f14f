"""How much is read in a batch: limits, the batch interval and the rate."""

import pytest

import headrace as hr
from headrace import events
from headrace.core.delivery import WriteResult
from headrace.testing.fakes import FakeClock
from support.simulation import A, records, simulate


def test_a_batch_waits_for_min_records_and_at_most_max_delay():
    sim = simulate({A: 0}, limits=hr.Limits(min_records=10, max_delay=60))
    clock, sizes = FakeClock(), {5: 3, 8: 12, 20: 13}
    sim.clock = clock

    def tick(asked):
        clock.advance(10.0)
        sim.cluster.end_offsets[A] = max(end for when, end in [(0, 0), *sizes.items()] if when <= asked)
        if asked > 40:
            sim.stop("test")

    sim.cluster.before_request = tick
    sim.run(None)
    assert [len(batch) for batch in sim.sink.batches] == [12, 1]
    assert len(sim.events_of(events.CaughtUp)) == 3


def test_catching_up_does_not_wait_for_min_records():
    sim = simulate({A: 4}, limits=hr.Limits(min_records=10))
    sim.run()
    assert sim.sink.rows == records(a=4)


def test_batches_shrink_while_the_sink_is_slow_and_grow_when_it_is_not():
    sim = simulate({A: 600_000}, limits=hr.Limits(batch_seconds=2, first_records=1_000))
    clock, per_second = FakeClock(), [10_000]

    def write(batch):
        if len(sim.sink.batches) == 10:
            per_second[0] = 1_000
        if len(sim.sink.batches) == 20:
            per_second[0] = 20_000
        clock.advance(len(batch) / per_second[0])

    sim.sink.before_write = write
    sim.clock = clock
    sim.run()
    sizes = [len(batch) for batch in sim.sink.batches]
    assert sizes[0] == 1_000
    assert sizes[5] == pytest.approx(20_000, rel=0.1)
    assert sizes[15] == pytest.approx(2_000, rel=0.2)
    assert sizes[25] == pytest.approx(40_000, rel=0.1)
    assert sim.sink.rows == records(a=600_000)


def test_bytes_limit_the_records_of_a_batch():
    sim = simulate({A: 100_000}, limits=hr.Limits(max_bytes=1_000_000, first_records=500))
    sim.engine.result = WriteResult(bytes_each=1_000)
    sim.run()
    assert [len(batch) for batch in sim.sink.batches][:3] == [500, 1_000, 1_000]
    assert sim.sink.rows == records(a=100_000)


def test_a_slow_sink_gets_batches_of_a_few_records():
    sim = simulate({A: 60}, limits=hr.Limits(batch_seconds=2, first_records=10))
    clock = FakeClock()

    def write(batch):
        clock.advance(len(batch) / 5)

    sim.sink.before_write = write
    sim.clock = clock
    sim.run()
    assert [len(batch) for batch in sim.sink.batches][1:] == [10] * 5
