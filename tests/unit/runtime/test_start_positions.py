"""Where a pipeline begins: start=, resume= and the positions that are written down first."""

from datetime import UTC, datetime

import pytest

import headrace as hr
from headrace import events
from headrace.errors import ConfigError, RetriableError
from headrace.testing.fakes import fail_first
from headrace.types import Progress, Range
from support.simulation import A, B, records, simulate


def test_start_positions_are_stored_before_the_first_read_so_that_a_restart_skips_nothing():
    sim = simulate({A: 10}, start="latest")
    sim.stop_on(events.CaughtUp)
    sim.run(None)
    assert sim.sink.rows == []
    sim.cluster.end_offsets[A] = 25
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(10, 25)]


def test_a_run_that_fails_in_its_first_batch_keeps_its_start_positions():
    sim = simulate({A: 10}, start="latest")
    sim.run()
    sim.cluster.end_offsets[A] = 20
    sim.sink.before_write = fail_first(1, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        sim.run(fail_fast=True)
    sim.cluster.end_offsets[A] = 30
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(10, 30)]


def test_a_time_starts_each_partition_at_its_first_record_since():
    sim = simulate({A: 10, B: 10}, start=datetime(2026, 11, 1, tzinfo=UTC))
    sim.cluster.offsets_by_time = {A: 6}
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(6, 10)]
    sim.cluster.offsets_by_time = {A: 0, B: 0}
    sim.cluster.end_offsets.update({A: 11, B: 11})
    sim.run()
    assert sim.sink.rows[4:] == [(A, 10), (B, 10)]


def test_partitions_with_a_start_offset_start_there_and_others_at_their_beginning():
    sim = simulate({A: 10, B: 3}, start={"clicks": {0: 8}})
    sim.run()
    assert sorted(sim.sink.rows) == [(A, 8), (A, 9), (B, 0), (B, 1), (B, 2)]


@pytest.mark.parametrize("offset", [4, 11])
def test_a_start_offset_outside_the_log_is_refused_before_anything_is_read(offset):
    sim = simulate({A: 10}, start={"clicks": {"0": offset}})
    sim.cluster.beginning_offsets = {A: 5}
    with pytest.raises(ConfigError, match=rf"clicks\[0\] from {offset}; its log has offsets 5 to 10"):
        sim.run()
    assert sim.progress.offsets == {}


def test_start_stored_needs_stored_offsets():
    sim = simulate({A: 10}, start="stored")
    with pytest.raises(ConfigError, match="no offsets of clicks are stored"):
        sim.run()
    assert sim.progress == Progress()
    sim.restore(Progress({A: 4}, topic_ids={"clicks": "id-1"}))
    sim.cluster.end_offsets[B] = 2
    sim.run()
    assert sorted(sim.sink.rows) == [(A, n) for n in range(4, 10)] + [(B, 0), (B, 1)]


def test_every_run_starts_fresh_without_resume_and_records_what_it_skips():
    sim = simulate({A: 10}, start="latest", resume=False)
    sim.run()
    sim.cluster.end_offsets[A] = 25
    sim.run()
    assert sim.sink.rows == []
    assert [(event.lost, event.resumed_at) for event in sim.events_of(events.GapFound)] == [(Range(A, 10, 25), 25)]
    (change,) = sim.store.history()
    assert (change.action, change.before, change.after) == ("fresh start", {A: 10}, {A: 25})


def test_a_run_without_resume_continues_where_it_was_after_a_retry():
    sim = simulate({A: 10}, start="earliest", resume=False, limits=hr.Limits(max_records=5))
    sim.sink.before_write = fail_first(1, RetriableError("no"))
    sim.run()
    assert sim.sink.rows == records(a=10)
    sim.run()
    assert sim.sink.rows == records(a=10) + records(a=10)


def test_a_fresh_start_is_for_partitions_that_were_added_meanwhile_too():
    sim = simulate({A: 10}, start="latest", resume=False)
    sim.run()
    sim.cluster.end_offsets[B] = 7
    sim.run()
    assert sim.sink.rows == []


@pytest.mark.parametrize("start", [{"misspelt": {0: 5}}, {"clicks": {7: 5}}])
def test_a_start_offset_of_a_partition_that_is_not_read_is_refused(start):
    with pytest.raises(ConfigError, match="is not read: clicks"):
        simulate({A: 10}, start=start).run()
