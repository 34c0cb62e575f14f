"""What a run delivers and reports, from its start until it is caught up."""

import pytest

import headrace as hr
from headrace import events
from headrace.errors import RetriableError
from headrace.types import Batch, Range
from support.fake_runs import A, B, Engine, Idempotent, World, failing, records


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_everything_that_is_there_is_delivered_once_and_the_offsets_say_so(guarantee):
    world = World({A: 25, B: 7}, guarantee=guarantee, sink=Idempotent(), limits=hr.Limits(max_records=10))
    summary = world.run()
    assert sorted(world.sink.rows) == records(a=25, b=7)
    assert (summary.batches, summary.records) == (4, 32)
    assert world.progress.offsets == {A: 25, B: 7}
    assert world.progress.pending is None
    assert world.progress.topic_ids == {"clicks": "id-1"}


def test_a_second_run_finds_nothing_to_do():
    world = World({A: 25})
    world.run()
    summary = world.run()
    assert (summary.batches, summary.records) == (0, 0)
    assert world.sink.rows == records(a=25)


def test_a_second_run_delivers_what_was_added_since():
    world = World({A: 25})
    world.run()
    world.cluster.ends_[A] = 30
    world.run()
    assert world.sink.rows == records(a=30)
    assert [batch.id for batch in world.sink.batches] == [1, 2]


def test_the_events_of_a_run_come_in_their_order():
    world = World({A: 5})
    world.run()
    batch = Batch(1, (Range(A, 0, 5),), {"clicks": "id-1"})
    assert [type(event) for event in world.seen] == [
        events.RunStarted,
        events.PartitionsFound,
        events.BatchStarted,
        events.BatchDone,
        events.CaughtUp,
        events.RunStopped,
    ]
    assert world.seen[0] == events.RunStarted("at-least-once", ("begin", "write", "commit"), {})
    assert world.seen[1] == events.PartitionsFound({A: 0})
    assert world.seen[2] == events.BatchStarted(batch, replay=False)
    assert (world.seen[3].batch, world.seen[3].lag) == (batch, 0)
    assert world.seen[5] == events.RunStopped(1, 5, None)


def test_the_lag_after_a_batch_is_what_is_left():
    world = World({A: 25, B: 5}, limits=hr.Limits(max_records=10))
    world.run()
    assert [event.lag for event in world.all(events.BatchDone)] == [20, 10, 0]


def test_bytes_are_those_of_all_records_where_they_were_measured():
    world = World({A: 10}, limits=hr.Limits(max_bytes=1_000_000))
    world.engine.bytes_each, world.engine.records = 12.5, 8
    world.run()
    assert [done.bytes for done in world.all(events.BatchDone)] == [100]
    world = World({A: 10})
    world.run()
    assert [done.bytes for done in world.all(events.BatchDone)] == [None]


def test_bad_records_left_out_are_reported_with_their_batch():
    world = World({A: 5})
    world.engine = Engine(world.sink, dropped=3)
    world.run()
    (dropped,) = world.all(events.BadRecordsDropped)
    assert (dropped.batch.id, dropped.count) == (1, 3)


def test_caught_up_means_the_ends_at_the_start_though_the_log_keeps_growing():
    world = World({A: 10}, limits=hr.Limits(max_records=4))

    def grow(_):
        world.cluster.ends_[A] += 100

    world.sink.before = grow
    summary = world.run()
    assert 10 <= summary.records <= 12
    assert world.sink.rows == [(A, offset) for offset in range(summary.records)]


def test_caught_up_keeps_its_target_over_a_failure():
    world = World({A: 10}, limits=hr.Limits(max_records=4))
    fail = failing(1, RetriableError("later"))

    def grow_and_fail(batch):
        world.cluster.ends_[A] += 100
        if batch.id == 2:
            fail()

    world.sink.before = grow_and_fail
    assert 10 <= world.run().records <= 12


def test_an_empty_topic_is_caught_up_at_once():
    world = World({A: 0, B: 0})
    assert world.run().batches == 0
    assert world.progress.offsets == {A: 0, B: 0}


def test_reaching_the_end_is_said_once_each_time():
    world = World({A: 3})
    runner = world.runner()
    reached = []

    def react(event):
        if isinstance(event, events.CaughtUp):
            reached.append(event.last_batch)
            if len(reached) == 2:
                runner.stop("test")

    def grow(asked):
        if asked == 30:
            world.cluster.ends_[A] = 8

    world.react, world.cluster.before = react, grow
    runner.run()
    assert reached == [1, 2]
    assert world.cluster.asked > 30
