"""A store that was restored from a backup and is older than its sink."""

import pytest

import headrace as hr
from headrace.connectors.shared.batch_ledger import LastBatch
from headrace.core.state import AuditEntry
from headrace.errors import OffsetConflict
from headrace.testing.fakes import FakeNumberedSink
from support.simulation import A, records, simulate


def restored(guarantee="exactly-once"):
    """The store is put back to where it was after the second of four batches."""
    sim = simulate({A: 10}, guarantee=guarantee, sink=FakeNumberedSink(), limits=hr.Limits(max_records=5))
    sim.run()
    backup = dict(sim.store.shared)
    sim.cluster.end_offsets[A] = 20
    sim.run()
    sim.store.shared.update(backup)
    return sim


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
def test_a_store_restored_from_an_older_backup_stops_the_run_before_rows_are_doubled(guarantee):
    sim = restored(guarantee)
    with pytest.raises(OffsetConflict, match=r"the sink holds batch 4 .* newest batch of the store is 2") as stopped:
        sim.run()
    assert "offsets seek" in stopped.value.hint
    assert sim.sink.rows == records(a=20)


def test_a_run_continues_once_the_offsets_are_set_and_numbers_batches_above_those_of_the_sink():
    sim = restored()
    sim.store.set_offsets(sim.progress, {A: 20}, AuditEntry(1.0, "somebody", "seek"))
    sim.cluster.end_offsets[A] = 22
    sim.run()
    assert sim.sink.rows == records(a=22)
    assert [batch.id for batch in sim.sink.batches] == [1, 2, 3, 4, 5]


def test_at_least_once_continues_with_a_store_that_is_older_than_the_sink():
    sim = restored("at-least-once")
    sim.run()
    assert sim.sink.rows == records(a=20) + records(a=20)[10:]


def test_a_move_before_the_backup_does_not_count():
    sim = simulate({A: 10}, guarantee="exactly-once", sink=FakeNumberedSink(), limits=hr.Limits(max_records=5))
    sim.run()
    sim.store.set_offsets(sim.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))
    sim.run()
    backup = dict(sim.store.shared)
    sim.cluster.end_offsets[A] = 20
    sim.run()
    sim.store.shared.update(backup)
    with pytest.raises(OffsetConflict, match="the sink holds batch 6"):
        sim.run()


def test_a_gap_that_a_run_recorded_before_the_backup_does_not_count():
    sim = simulate({A: 10}, guarantee="exactly-once", sink=FakeNumberedSink(), on_data_loss="earliest")
    sim.run()
    sim.store.set_offsets(sim.progress, {A: 10}, AuditEntry(1.0, "run pid 1 on host", "gap"))
    backup = dict(sim.store.shared)
    sim.cluster.end_offsets[A] = 20
    sim.run()
    sim.store.shared.update(backup)
    with pytest.raises(OffsetConflict, match="the sink holds batch 2"):
        sim.run()


def test_a_new_store_numbers_above_the_batches_of_the_sink():
    sim = simulate({A: 5}, guarantee="exactly-once", sink=FakeNumberedSink(newest=LastBatch(7, "another")))
    sim.run()
    assert [batch.id for batch in sim.sink.batches] == [8]
