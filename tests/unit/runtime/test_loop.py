"""What a run delivers and reports, from its start until it is caught up."""

import pytest

import headrace as hr
from headrace import events
from headrace.core.delivery import WriteResult
from headrace.errors import RetriableError
from headrace.testing.fakes import fail_first
from headrace.types import Batch, Range
from support.simulation import A, B, NaiveIdempotentSink, records, simulate


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_all_records_are_delivered_once_and_the_offsets_committed(guarantee):
    sim = simulate({A: 25, B: 7}, guarantee=guarantee, sink=NaiveIdempotentSink(), limits=hr.Limits(max_records=10))
    summary = sim.run()
    assert sorted(sim.sink.rows) == records(a=25, b=7)
    assert (summary.batches, summary.records) == (4, 32)
    assert sim.progress.offsets == {A: 25, B: 7}
    assert sim.progress.pending is None
    assert sim.progress.topic_ids == {"clicks": "id-1"}


def test_a_second_run_finds_nothing_to_do():
    sim = simulate({A: 25})
    sim.run()
    summary = sim.run()
    assert (summary.batches, summary.records) == (0, 0)
    assert sim.sink.rows == records(a=25)


def test_a_second_run_delivers_what_was_added_since():
    sim = simulate({A: 25})
    sim.run()
    sim.cluster.end_offsets[A] = 30
    sim.run()
    assert sim.sink.rows == records(a=30)
    assert [batch.id for batch in sim.sink.batches] == [1, 2]


def test_the_events_of_a_run_come_in_their_order():
    sim = simulate({A: 5})
    sim.run()
    batch = Batch(1, (Range(A, 0, 5),), {"clicks": "id-1"})
    assert [type(event) for event in sim.events] == [
        events.RunStarted,
        events.PartitionsFound,
        events.BatchStarted,
        events.BatchDone,
        events.CaughtUp,
        events.RunStopped,
    ]
    assert sim.events[0] == events.RunStarted("at-least-once", ("begin", "write", "commit"), {})
    assert sim.events[1] == events.PartitionsFound({A: 0})
    assert sim.events[2] == events.BatchStarted(batch, replay=False)
    assert (sim.events[3].batch, sim.events[3].lag) == (batch, 0)
    assert sim.events[5] == events.RunStopped(1, 5, None)


def test_the_lag_after_a_batch_is_what_is_left():
    sim = simulate({A: 25, B: 5}, limits=hr.Limits(max_records=10))
    sim.run()
    assert [event.lag for event in sim.events_of(events.BatchDone)] == [20, 10, 0]


def test_bytes_are_those_of_all_records_where_they_were_measured():
    sim = simulate({A: 10}, limits=hr.Limits(max_bytes=1_000_000))
    sim.engine.result = WriteResult(bytes_each=12.5, records=8)
    sim.run()
    assert [done.bytes for done in sim.events_of(events.BatchDone)] == [100]
    sim = simulate({A: 10})
    sim.run()
    assert [done.bytes for done in sim.events_of(events.BatchDone)] == [None]


def test_bad_records_left_out_are_reported_with_their_batch():
    sim = simulate({A: 5})
    sim.engine.result = WriteResult(dropped=3)
    sim.run()
    (dropped,) = sim.events_of(events.BadRecordsDropped)
    assert (dropped.batch.id, dropped.count) == (1, 3)


def test_caught_up_means_the_ends_at_the_start_though_the_log_keeps_growing():
    sim = simulate({A: 10}, limits=hr.Limits(max_records=4))

    def grow(_):
        sim.cluster.end_offsets[A] += 100

    sim.sink.before_write = grow
    summary = sim.run()
    assert 10 <= summary.records <= 12
    assert sim.sink.rows == [(A, offset) for offset in range(summary.records)]


def test_caught_up_keeps_its_target_over_a_failure():
    sim = simulate({A: 10}, limits=hr.Limits(max_records=4))
    fail = fail_first(1, RetriableError("later"))

    def grow_and_fail(batch):
        sim.cluster.end_offsets[A] += 100
        if batch.id == 2:
            fail()

    sim.sink.before_write = grow_and_fail
    assert 10 <= sim.run().records <= 12


def test_an_empty_topic_is_caught_up_immediately():
    sim = simulate({A: 0, B: 0})
    assert sim.run().batches == 0
    assert sim.progress.offsets == {A: 0, B: 0}


def test_reaching_the_end_is_reported_once_each_time():
    sim = simulate({A: 3})
    reached = []

    def react(event):
        if isinstance(event, events.CaughtUp):
            reached.append(event.last_batch)
            if len(reached) == 2:
                sim.stop("test")

    def grow(asked):
        if asked == 30:
            sim.cluster.end_offsets[A] = 8

    sim.on_event, sim.cluster.before_request = react, grow
    sim.run(None)
    assert reached == [1, 2]
    assert sim.cluster.requests > 30
