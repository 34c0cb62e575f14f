"""Records that are gone before they were read, and those that max_lag skips."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.core.state import AuditEntry
from headrace.errors import DataLoss, OffsetConflict
from headrace.types import Progress, Range, TopicPartition
from support.fake_runs import A, B, World


def test_records_that_aged_out_are_data_loss_with_the_exact_range_and_nothing_is_written():
    world = World({A: 50}, progress=Progress({A: 10}, topic_ids={"clicks": "id-1"}, last_batch=3))
    world.cluster.beginnings = {A: 25}
    with pytest.raises(DataLoss, match=r"clicks\[0\] \[10, 25\)") as lost:
        world.run()
    assert lost.value.exit_code == 4
    assert lost.value.hint
    assert world.sink.rows == []
    assert world.progress.offsets == {A: 10}


def test_told_to_go_on_a_run_passes_the_gap_and_records_it():
    progress = Progress({A: 10}, topic_ids={"clicks": "id-1"}, last_batch=3)
    world = World({A: 50}, progress=progress, on_data_loss="earliest")
    world.cluster.beginnings = {A: 25}
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(25, 50)]
    (gap,) = world.all(events.GapFound)
    assert (gap.lost, gap.resumed_at) == (Range(A, 10, 25), 25)
    (change,) = world.store.history()
    assert (change.before, change.after) == ({A: 10}, {A: 25})
    assert "[10, 25)" in change.note


def test_a_gap_is_not_passed_over_offsets_that_somebody_moved_meanwhile():
    """Else the move would be undone without a word, and what it asked for never be read again."""
    world = World({A: 50}, progress=Progress({A: 10}, topic_ids={"clicks": "id-1"}), on_data_loss="earliest")
    world.cluster.beginnings = {A: 25}

    def move(asked):
        if asked == 0:
            world.store.set_offsets(world.progress, {A: 30}, AuditEntry(1.0, "somebody", "seek"))

    world.cluster.before = move
    with pytest.raises(OffsetConflict, match="somebody else moved the offsets"):
        world.run()
    assert world.progress.offsets == {A: 30}
    assert world.sink.rows == []
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(30, 50)]


def test_what_lags_more_than_allowed_is_skipped_and_recorded():
    world = World({A: 100, B: 3}, max_lag=10)
    world.run()
    assert sorted(world.sink.rows) == [(A, n) for n in range(90, 100)] + [(B, n) for n in range(3)]
    (gap,) = world.all(events.GapFound)
    assert (gap.lost, gap.resumed_at) == (Range(A, 0, 90), 90)
    assert "max_lag=10 offsets" in gap.reason
    (change,) = world.store.history()
    assert "90 offsets" in change.note


def test_a_lag_may_be_given_as_a_time():
    world = World({A: 100, B: 50}, max_lag="10m")
    world.cluster.at_times = {A: 97}
    world.run()
    assert world.sink.rows == [(A, n) for n in range(97, 100)]


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_topic_of_a_pattern_that_is_deleted_unread_is_data_loss_or_on_record(policy):
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    world = World(
        {eu: 5, us: 40},
        topics=None,
        pattern=r"clicks\..*",
        on_data_loss=policy,
        limits=hr.Limits(max_records=10),
        refresh=0.000_1,
    )
    world.sink.before = lambda batch: world.cluster.ends_.pop(us, None)
    if policy == "fail":
        with pytest.raises(DataLoss, match="the topic was deleted"):
            world.run()
        return
    world.run()
    (gap,) = world.all(events.GapFound)
    assert (gap.lost, gap.reason) == (Range(us, 5, 40), "the topic was deleted")
    assert [change.action for change in world.store.history()] == ["gap"]


def test_to_catch_up_ends_though_a_topic_is_deleted_or_made_anew_with_less():
    eu, us = TopicPartition("clicks.eu", 0), TopicPartition("clicks.us", 0)
    world = World(
        {eu: 20, us: 20},
        topics=None,
        pattern=r"clicks\..*",
        on_data_loss="earliest",
        limits=hr.Limits(max_records=4),
        refresh=0.000_1,
    )

    def write(batch):
        world.cluster.ends_.pop(us, None)
        world.cluster.ends_[eu] = 12

    world.sink.before = write
    world.run()
    assert world.progress.offsets[eu] == 12


def test_a_log_that_has_uncommitted_records_was_not_cut_back():
    world = World({A: 10}, progress=Progress({A: 12}, topic_ids={"clicks": "id-1"}))
    look = world.cluster.logs
    world.cluster.logs = lambda subscription: {
        topic: replace(log, written={A: 15}) for topic, log in look(subscription).items()
    }
    world.run()
    assert world.progress.offsets == {A: 12}


def test_what_is_held_back_is_not_skipped():
    now = [0.0]
    world = World({A: 0}, limits=hr.Limits(min_records=100, max_delay=1000), max_lag=50)
    runner = world.runner(clock=lambda: now[0])

    def grow(asked):
        now[0] += 1.0
        world.cluster.ends_[A] += 10
        if asked > 60:
            runner.stop("test")

    world.cluster.before = grow
    runner.run()
    assert len(world.sink.rows) >= 200
    assert all(50 <= len(batch) <= 100 for batch in world.sink.batches)
