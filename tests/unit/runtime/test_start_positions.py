"""Where a pipeline begins: start=, resume= and the positions that are written down first."""

from datetime import UTC, datetime

import pytest

import headrace as hr
from headrace import events
from headrace.errors import ConfigError, RetriableError
from headrace.types import Progress, Range
from support.fake_runs import A, B, World, failing, records, until_idle


def test_the_first_position_is_written_down_before_the_first_read_so_that_a_restart_does_not_skip():
    world = World({A: 10}, start="latest")
    runner = world.runner()
    until_idle(world, runner)
    runner.run()
    assert world.sink.rows == []
    world.cluster.ends_[A] = 25
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(10, 25)]


def test_a_run_that_dies_in_its_first_batch_does_not_choose_its_beginning_anew():
    world = World({A: 10}, start="latest")
    world.run()
    world.cluster.ends_[A] = 20
    world.sink.before = failing(1, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        world.run(fail_fast=True)
    world.cluster.ends_[A] = 30
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(10, 30)]


def test_a_time_starts_each_partition_at_its_first_record_since():
    world = World({A: 10, B: 10}, start=datetime(2026, 11, 1, tzinfo=UTC))
    world.cluster.at_times = {A: 6}
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(6, 10)]
    world.cluster.at_times = {A: 0, B: 0}
    world.cluster.ends_.update({A: 11, B: 11})
    world.run()
    assert world.sink.rows[4:] == [(A, 10), (B, 10)]


def test_given_offsets_start_there_and_the_others_at_their_beginning():
    world = World({A: 10, B: 3}, start={"clicks": {0: 8}})
    world.run()
    assert sorted(world.sink.rows) == [(A, 8), (A, 9), (B, 0), (B, 1), (B, 2)]


@pytest.mark.parametrize("offset", [4, 11])
def test_an_offset_that_the_log_does_not_have_is_refused_before_anything_is_read(offset):
    world = World({A: 10}, start={"clicks": {"0": offset}})
    world.cluster.beginnings = {A: 5}
    with pytest.raises(ConfigError, match=rf"clicks\[0\] from {offset}; its log has offsets 5 to 10"):
        world.run()
    assert world.progress.offsets == {}


def test_stored_starts_where_it_was_or_not_at_all():
    world = World({A: 10}, start="stored")
    with pytest.raises(ConfigError, match="no offsets of clicks are stored"):
        world.run()
    assert world.progress == Progress()
    world.restore(Progress({A: 4}, topic_ids={"clicks": "id-1"}))
    world.cluster.ends_[B] = 2
    world.run()
    assert sorted(world.sink.rows) == [(A, n) for n in range(4, 10)] + [(B, 0), (B, 1)]


def test_every_run_starts_fresh_without_resume_and_what_it_leaves_out_is_on_record():
    world = World({A: 10}, start="latest", resume=False)
    world.run()
    world.cluster.ends_[A] = 25
    world.run()
    assert world.sink.rows == []
    assert [(event.lost, event.resumed_at) for event in world.all(events.GapFound)] == [(Range(A, 10, 25), 25)]
    (change,) = world.store.history()
    assert (change.action, change.before, change.after) == ("fresh start", {A: 10}, {A: 25})


def test_a_run_without_resume_goes_on_where_it_was_after_an_error_of_its_own():
    world = World({A: 10}, start="earliest", resume=False, limits=hr.Limits(max_records=5))
    world.sink.before = failing(1, RetriableError("no"))
    world.run()
    assert world.sink.rows == records(a=10)
    world.run()
    assert world.sink.rows == records(a=10) + records(a=10)


def test_a_fresh_start_is_for_partitions_that_were_added_meanwhile_too():
    world = World({A: 10}, start="latest", resume=False)
    world.run()
    world.cluster.ends_[B] = 7
    world.run()
    assert world.sink.rows == []


@pytest.mark.parametrize("start", [{"misspelt": {0: 5}}, {"clicks": {7: 5}}])
def test_an_offset_of_something_that_is_not_read_is_refused(start):
    with pytest.raises(ConfigError, match="is not read: clicks"):
        World({A: 10}, start=start).run()
