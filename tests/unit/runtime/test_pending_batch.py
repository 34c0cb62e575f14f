"""The batch that an earlier attempt or an earlier run left in the journal."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events, sinks
from headrace.errors import DataLoss, RetriableError
from headrace.testing.fakes import FakeSink, fail_first
from headrace.types import Batch, Progress, Range, TopicPartition
from support.simulation import A, B, NaiveIdempotentSink, NaiveKeyedSink, interrupted, pending_batch, simulate


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_pending_batch_is_repeated_with_its_exact_ranges_before_anything_new(guarantee):
    left = pending_batch((A, 10, 13), (B, 2, 3))
    sim = simulate(
        {A: 50, B: 9}, guarantee=guarantee, sink=NaiveIdempotentSink(), progress=interrupted(left, a=10, b=2)
    )
    sim.run()
    assert sim.sink.batches[0] == left
    assert sim.sink.batches[1].ranges == (Range(A, 13, 50), Range(B, 3, 9))
    assert sim.sink.batches[1].id == 6
    started = sim.events_of(events.BatchStarted)
    assert [(event.batch.id, event.replay) for event in started] == [(5, True), (6, False)]


def test_a_pending_batch_is_repeated_whole_though_the_limits_are_lower_now():
    left = pending_batch((A, 0, 30))
    sim = simulate({A: 50, B: 0}, progress=interrupted(left), limits=hr.Limits(max_records=5))
    sim.run()
    assert sim.sink.batches[0] == left


def test_a_repeated_batch_counts_as_delivered():
    left = pending_batch((A, 0, 30))
    summary = simulate({A: 30, B: 0}, progress=interrupted(left)).run()
    assert (summary.batches, summary.records) == (1, 30)


def test_a_pending_batch_under_at_most_once_is_committed_unwritten_and_reported_as_skipped():
    left = pending_batch((A, 0, 30))
    sim = simulate({A: 31, B: 0}, guarantee="at-most-once", progress=interrupted(left))
    sim.run()
    assert sim.sink.rows == [(A, 30)]
    assert sim.events_of(events.BatchSkipped) == [events.BatchSkipped(left)]
    assert sim.progress.pending is None
    assert sim.progress.offsets[A] == 31


def test_a_run_that_fails_while_repeating_repeats_the_same_batch_again():
    left = pending_batch((A, 0, 30))
    sim = simulate(
        {A: 50, B: 0}, progress=interrupted(left), sink=FakeSink(before_write=fail_first(2, ValueError("no")))
    )
    sim.run()
    assert sim.sink.batches[0] == left
    assert [event.batch.id for event in sim.events_of(events.BatchStarted)] == [5, 5, 5, 6]


def test_a_failed_write_is_repeated_with_the_same_ranges_though_the_log_grew():
    sim = simulate({A: 10})
    fail = fail_first(1, RetriableError("later"))

    def grow_and_fail(batch):
        sim.cluster.end_offsets[A] = 20
        fail()

    sim.sink.before_write = grow_and_fail
    sim.run()
    assert sim.sink.batches[0].ranges == (Range(A, 0, 10),)
    assert sim.events_of(events.BatchStarted)[1].replay


def test_a_pending_batch_whose_records_were_deleted_is_data_loss_with_a_hint():
    sim = simulate({A: 50, B: 0}, progress=interrupted(pending_batch((A, 0, 30))))
    sim.cluster.beginning_offsets = {A: 20}
    with pytest.raises(DataLoss, match=r"batch 5 was begun.*clicks\[0\] \[0, 20\)") as lost:
        sim.run()
    assert "abandons the batch and records it" in lost.value.hint
    assert sim.sink.rows == []
    assert sim.progress.pending is not None


def test_a_pending_batch_that_reaches_past_the_end_of_the_log_is_data_loss():
    sim = simulate({A: 20, B: 0}, progress=interrupted(pending_batch((A, 10, 30)), a=10))
    with pytest.raises(DataLoss):
        sim.run()
    assert sim.sink.rows == []


def test_a_batch_that_was_begun_with_another_sink_is_only_written_to_a_transactional_one():
    """Offsets were copied, pending batch and all, from the store of an idempotent sink."""
    from headrace.core.delivery import Guarantee, Step, resume

    assert resume(Guarantee.EXACTLY_ONCE, sinks.DuckDB("x.duckdb", "t")) == (Step.WRITE,)


def test_with_on_data_loss_earliest_a_run_abandons_a_batch_that_cannot_be_read():
    left = pending_batch((A, 0, 30), (B, 0, 5))
    sim = simulate({A: 50, B: 9}, sink=NaiveIdempotentSink(), progress=interrupted(left), on_data_loss="earliest")
    sim.cluster.beginning_offsets = {A: 20}
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(30, 50)] + [(B, offset) for offset in range(5, 9)]
    assert sim.events_of(events.BatchSkipped) == [events.BatchSkipped(left)]
    (recorded,) = sim.store.history()
    assert (recorded.before, recorded.after) == ({A: 0, B: 0}, {A: 30, B: 5})
    assert "batch 5 abandoned" in recorded.note


@pytest.mark.parametrize(("sink", "guarantee"), [(NaiveKeyedSink, "exactly-once"), (FakeSink, "at-least-once")])
def test_a_sink_that_accepts_partial_batches_gets_the_readable_part_of_a_pending_batch(sink, guarantee):
    left = pending_batch((A, 0, 30), (B, 0, 5))
    sim = simulate({A: 50, B: 9}, guarantee=guarantee, sink=sink(), progress=interrupted(left), on_data_loss="earliest")
    sim.cluster.beginning_offsets = {A: 20}
    sim.run()
    assert sorted(sim.sink.rows) == [(A, offset) for offset in range(20, 50)] + [(B, n) for n in range(9)]
    assert sim.sink.batches[0] == replace(left, ranges=(Range(A, 20, 30), Range(B, 0, 5)))
    assert sim.events_of(events.BatchSkipped) == []
    assert sim.events_of(events.GapFound) == [
        events.GapFound(Range(A, 0, 20), "the broker has deleted these records", 20)
    ]
    (recorded,) = sim.store.history()
    assert (recorded.before, recorded.after) == ({A: 0}, {A: 20})
    assert sim.progress.offsets == {A: 50, B: 9}
    assert sim.progress.last_batch == 6


def shrunken():
    return replace(interrupted(pending_batch((A, 0, 30))), pending=replace(pending_batch((A, 0, 30)), missing=1))


@pytest.mark.parametrize("sink", [NaiveIdempotentSink, FakeSink])
def test_a_pending_batch_of_which_the_store_lost_ranges_is_not_replayed(sink):
    sim = simulate({A: 50, B: 0}, sink=sink(), progress=shrunken())
    with pytest.raises(DataLoss, match="batch 5 was begun and can no longer be read: 1 of its 2 ranges"):
        sim.run()
    assert sim.sink.rows == []
    assert sim.progress == shrunken()


def test_with_on_data_loss_earliest_a_run_abandons_and_records_a_batch_of_which_the_store_lost_ranges():
    sim = simulate({A: 50, B: 0}, sink=NaiveIdempotentSink(), progress=shrunken(), on_data_loss="earliest")
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(30, 50)]
    (recorded,) = sim.store.history()
    assert (recorded.before, recorded.after) == ({A: 0}, {A: 30})
    assert "1 of its 2 ranges" in recorded.note


def test_a_store_that_loses_ranges_of_the_batch_in_flight_is_data_loss():
    sim = simulate({A: 50, B: 0}, sink=NaiveIdempotentSink())

    def lose(batch):
        before = sim.store.read()[0]
        shrunk = replace(before.progress, pending=replace(batch, missing=1))
        sim.store.change(lambda state: replace(state, progress=shrunk))

    sim.sink.before_write = lose
    with pytest.raises(DataLoss, match="a topic of batch 1 was deleted"):
        sim.run()


def test_a_fresh_start_abandons_the_pending_batch_and_records_it():
    pending = Batch(3, (Range(A, 5, 9),), {"clicks": "id-1"})
    sim = simulate(
        {A: 20},
        start="latest",
        resume=False,
        progress=Progress({A: 5}, pending, {"clicks": "id-1"}, last_batch=2),
        sink=NaiveIdempotentSink(),
        guarantee="exactly-once",
    )
    sim.run()
    assert sim.sink.rows == []
    assert [event.batch for event in sim.events_of(events.BatchSkipped)] == [pending]
    assert sim.progress.pending is None
    assert "batch 3 abandoned" in sim.store.history()[0].note


def test_a_pending_batch_of_a_deleted_topic_is_data_loss_or_abandoned():
    pending = Batch(3, (Range(TopicPartition("clicks.us", 0), 5, 9),), {"clicks.us": "id-1"})
    progress = Progress({TopicPartition("clicks.us", 0): 5}, pending, {"clicks.us": "id-1"}, last_batch=2)
    eu = TopicPartition("clicks.eu", 0)
    for policy in ("fail", "earliest"):
        sim = simulate({eu: 3}, topics=None, pattern=r"clicks\..*", on_data_loss=policy, progress=progress)
        if policy == "fail":
            with pytest.raises(DataLoss, match="the topic was deleted"):
                sim.run()
        else:
            sim.run()
            assert sim.sink.rows == [(eu, n) for n in range(3)]


def test_a_pending_batch_of_a_deleted_partition_is_data_loss():
    sim = simulate({A: 50}, progress=interrupted(pending_batch((B, 0, 30))))
    sim.cluster.topic_ids["clicks"] = "id-2"
    with pytest.raises(DataLoss, match="created again"):
        sim.run()
