"""How much is read in a batch: limits, the batch interval and the rate."""

import pytest

import headrace as hr
from headrace import events
from support.fake_runs import A, World, records


def test_a_batch_waits_for_enough_records_but_not_for_ever():
    world = World({A: 0}, limits=hr.Limits(min_records=10, max_delay=60))
    now, sizes = [0.0], {5: 3, 8: 12, 20: 13}
    runner = world.runner(clock=lambda: now[0])

    def tick(asked):
        now[0] += 10.0
        world.cluster.ends_[A] = max(end for when, end in [(0, 0), *sizes.items()] if when <= asked)
        if asked > 40:
            runner.stop("test")

    world.cluster.before = tick
    runner.run(None)
    assert [len(batch) for batch in world.sink.batches] == [12, 1]
    assert len(world.all(events.CaughtUp)) == 3


def test_to_catch_up_means_to_wait_for_no_more():
    world = World({A: 4}, limits=hr.Limits(min_records=10))
    world.run()
    assert world.sink.rows == records(a=4)


def test_batches_shrink_while_the_sink_is_slow_and_grow_when_it_is_not():
    world = World({A: 600_000}, limits=hr.Limits(batch_seconds=2, first_records=1_000))
    now, per_second = [0.0], [10_000]

    def write(batch):
        if len(world.sink.batches) == 10:
            per_second[0] = 1_000
        if len(world.sink.batches) == 20:
            per_second[0] = 20_000
        now[0] += len(batch) / per_second[0]

    world.sink.before = write
    world.run(clock=lambda: now[0])
    sizes = [len(batch) for batch in world.sink.batches]
    assert sizes[0] == 1_000
    assert sizes[5] == pytest.approx(20_000, rel=0.1)
    assert sizes[15] == pytest.approx(2_000, rel=0.2)
    assert sizes[25] == pytest.approx(40_000, rel=0.1)
    assert world.sink.rows == records(a=600_000)


def test_bytes_limit_the_records_of_a_batch():
    world = World({A: 100_000}, limits=hr.Limits(max_bytes=1_000_000, first_records=500))
    world.engine.bytes_each = 1_000
    world.run()
    assert [len(batch) for batch in world.sink.batches][:3] == [500, 1_000, 1_000]
    assert world.sink.rows == records(a=100_000)


def test_a_slow_sink_gets_batches_of_a_few_records():
    world = World({A: 60}, limits=hr.Limits(batch_seconds=2, first_records=10))
    now = [0.0]

    def write(batch):
        now[0] += len(batch) / 5

    world.sink.before = write
    world.run(clock=lambda: now[0])
    assert [len(batch) for batch in world.sink.batches][1:] == [10] * 5
