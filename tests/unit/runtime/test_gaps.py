"""Records that are gone before they were read, and those that max_lag skips."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.core.state import AuditEntry
from headrace.errors import DataLoss, OffsetConflict
from headrace.testing.fakes import FakeClock
from headrace.types import Progress, Range, TopicPartition
from support.simulation import A, B, simulate


def test_records_that_aged_out_are_data_loss_with_the_exact_range_and_nothing_is_written():
    sim = simulate({A: 50}, progress=Progress({A: 10}, topic_ids={"clicks": "id-1"}, last_batch=3))
    sim.cluster.beginning_offsets = {A: 25}
    with pytest.raises(DataLoss, match=r"clicks\[0\] \[10, 25\)") as lost:
        sim.run()
    assert lost.value.exit_code == 4
    assert lost.value.hint
    assert sim.sink.rows == []
    assert sim.progress.offsets == {A: 10}


def test_with_on_data_loss_earliest_a_run_skips_the_gap_and_records_it():
    progress = Progress({A: 10}, topic_ids={"clicks": "id-1"}, last_batch=3)
    sim = simulate({A: 50}, progress=progress, on_data_loss="earliest")
    sim.cluster.beginning_offsets = {A: 25}
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(25, 50)]
    (gap,) = sim.events_of(events.GapFound)
    assert (gap.lost, gap.resumed_at) == (Range(A, 10, 25), 25)
    (change,) = sim.store.history()
    assert (change.before, change.after) == ({A: 10}, {A: 25})
    assert "[10, 25)" in change.note


def test_a_gap_is_not_skipped_if_the_offsets_were_set_meanwhile():
    """Else the move would be undone without a word, and what it asked for never be read again."""
    sim = simulate({A: 50}, progress=Progress({A: 10}, topic_ids={"clicks": "id-1"}), on_data_loss="earliest")
    sim.cluster.beginning_offsets = {A: 25}

    def move(asked):
        if asked == 0:
            sim.store.set_offsets(sim.progress, {A: 30}, AuditEntry(1.0, "somebody", "seek"))

    sim.cluster.before_request = move
    with pytest.raises(OffsetConflict, match="another process moved the offsets"):
        sim.run()
    assert sim.progress.offsets == {A: 30}
    assert sim.sink.rows == []
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(30, 50)]


def test_a_lag_above_max_lag_is_skipped_and_recorded():
    sim = simulate({A: 100, B: 3}, max_lag=10)
    sim.run()
    assert sorted(sim.sink.rows) == [(A, n) for n in range(90, 100)] + [(B, n) for n in range(3)]
    (gap,) = sim.events_of(events.GapFound)
    assert (gap.lost, gap.resumed_at) == (Range(A, 0, 90), 90)
    assert "max_lag=10 offsets" in gap.reason
    (change,) = sim.store.history()
    assert "90 offsets" in change.note


def test_a_lag_may_be_given_as_a_time():
    sim = simulate({A: 100, B: 50}, max_lag="10m")
    sim.cluster.offsets_by_time = {A: 97}
    sim.run()
    assert sim.sink.rows == [(A, n) for n in range(97, 100)]


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_topic_of_a_pattern_that_is_deleted_unread_is_data_loss_or_on_record(policy):
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    sim = simulate(
        {eu: 5, us: 40},
        topics=None,
        pattern=r"clicks\..*",
        on_data_loss=policy,
        limits=hr.Limits(max_records=10),
        refresh=0.000_1,
    )
    sim.sink.before_write = lambda batch: sim.cluster.end_offsets.pop(us, None)
    if policy == "fail":
        with pytest.raises(DataLoss, match="the topic was deleted"):
            sim.run()
        return
    sim.run()
    (gap,) = sim.events_of(events.GapFound)
    assert (gap.lost, gap.reason) == (Range(us, 5, 40), "the topic was deleted")
    assert [change.action for change in sim.store.history()] == ["gap"]


def test_catching_up_ends_though_a_topic_is_deleted_or_recreated_with_fewer_records():
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    sim = simulate(
        {eu: 20, us: 20},
        topics=None,
        pattern=r"clicks\..*",
        on_data_loss="earliest",
        limits=hr.Limits(max_records=4),
        refresh=0.000_1,
    )

    def write(batch):
        sim.cluster.end_offsets.pop(us, None)
        sim.cluster.end_offsets[eu] = 12

    sim.sink.before_write = write
    sim.run()
    assert sim.progress.offsets[eu] == 12


def test_a_log_that_has_uncommitted_records_was_not_cut_back():
    sim = simulate({A: 10}, progress=Progress({A: 12}, topic_ids={"clicks": "id-1"}))
    look = sim.cluster.logs
    sim.cluster.logs = lambda subscription: {
        topic: replace(log, written={A: 15}) for topic, log in look(subscription).items()
    }
    sim.run()
    assert sim.progress.offsets == {A: 12}


def test_records_that_min_records_holds_back_are_not_skipped():
    clock = FakeClock()
    sim = simulate({A: 0}, limits=hr.Limits(min_records=100, max_delay=1000), max_lag=50)
    sim.clock = clock

    def grow(asked):
        clock.advance(1.0)
        sim.cluster.end_offsets[A] += 10
        if asked > 60:
            sim.stop("test")

    sim.cluster.before_request = grow
    sim.run(None)
    assert len(sim.sink.rows) >= 200
    assert all(50 <= len(batch) <= 100 for batch in sim.sink.batches)
