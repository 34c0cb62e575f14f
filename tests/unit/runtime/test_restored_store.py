"""A store that was restored from a backup and is older than its sink."""

import pytest

import headrace as hr
from headrace.connectors.shared.batch_ledger import LastBatch
from headrace.core.state import AuditEntry
from headrace.errors import OffsetConflict
from support.fake_runs import A, Numbered, World, records


def restored(guarantee="exactly-once"):
    """The store is put back to where it was after the second of four batches."""
    world = World({A: 10}, guarantee=guarantee, sink=Numbered(), limits=hr.Limits(max_records=5))
    world.run()
    backup = dict(world.shared)
    world.cluster.ends_[A] = 20
    world.run()
    world.shared.update(backup)
    return world


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
def test_a_store_restored_from_an_older_backup_stops_the_run_before_rows_are_doubled(guarantee):
    world = restored(guarantee)
    with pytest.raises(OffsetConflict, match=r"the sink holds batch 4 .* newest batch of the store is 2") as stopped:
        world.run()
    assert "offsets seek" in stopped.value.hint
    assert world.sink.rows == records(a=20)


def test_a_run_goes_on_once_the_offsets_were_set_and_batches_are_numbered_above_those_of_the_sink():
    world = restored()
    world.store.set_offsets(world.progress, {A: 20}, AuditEntry(1.0, "somebody", "seek"))
    world.cluster.ends_[A] = 22
    world.run()
    assert world.sink.rows == records(a=22)
    assert [batch.id for batch in world.sink.batches] == [1, 2, 3, 4, 5]


def test_at_least_once_goes_on_with_a_store_that_is_older_than_the_sink():
    world = restored("at-least-once")
    world.run()
    assert world.sink.rows == records(a=20) + records(a=20)[10:]


def test_a_move_before_the_backup_does_not_count():
    world = World({A: 10}, guarantee="exactly-once", sink=Numbered(), limits=hr.Limits(max_records=5))
    world.run()
    world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))
    world.run()
    backup = dict(world.shared)
    world.cluster.ends_[A] = 20
    world.run()
    world.shared.update(backup)
    with pytest.raises(OffsetConflict, match="the sink holds batch 6"):
        world.run()


def test_a_gap_that_a_run_recorded_before_the_backup_does_not_count():
    world = World({A: 10}, guarantee="exactly-once", sink=Numbered(), on_data_loss="earliest")
    world.run()
    world.store.set_offsets(world.progress, {A: 10}, AuditEntry(1.0, "run pid 1 on host", "gap"))
    backup = dict(world.shared)
    world.cluster.ends_[A] = 20
    world.run()
    world.shared.update(backup)
    with pytest.raises(OffsetConflict, match="the sink holds batch 2"):
        world.run()


def test_a_new_store_numbers_above_the_batches_of_the_sink():
    world = World({A: 5}, guarantee="exactly-once", sink=Numbered(newest=LastBatch(7, "another")))
    world.run()
    assert [batch.id for batch in world.sink.batches] == [8]
