"""Offsets that are moved back: what is read again is stored again."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.core.state import AuditEntry
from headrace.errors import OffsetConflict
from support.fake_runs import A, Idempotent, Numbered, World, begun, pending, records


class Published(Idempotent):
    """Knows batches by their names, as Parquet does."""

    def write(self, batch, rows):
        if batch.fingerprint not in {known.fingerprint for known in self.batches}:
            super().write(batch, rows)


@pytest.mark.parametrize("sink", [Published, Numbered])
@pytest.mark.parametrize("cut", [10, 7])
def test_what_is_read_again_after_a_reset_is_stored_again_however_it_is_cut(sink, cut):
    world = World({A: 10}, guarantee="exactly-once", sink=sink(), limits=hr.Limits(max_records=cut))
    for epoch in range(3):
        assert world.progress.epoch == epoch
        world.run()
        assert world.sink.rows == records(a=10) * (epoch + 1)
        world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))


@pytest.mark.parametrize("sink", [Published, Numbered])
@pytest.mark.parametrize("cut", [10, 7])
def test_a_reset_that_drops_a_batch_which_is_stored_already_stores_it_again_however_it_is_cut(sink, cut):
    left = pending((A, 0, 10))
    world = World(
        {A: 10}, guarantee="exactly-once", sink=sink(), progress=begun(left), limits=hr.Limits(max_records=cut)
    )
    world.sink.write(left, records(a=10))  # by a run that was killed before it could commit
    world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))
    world.run()
    assert world.sink.rows == records(a=10) * 2


def test_a_run_that_planned_a_batch_before_the_offsets_were_moved_back_is_refused():
    world = World({A: 10}, guarantee="exactly-once", sink=Published(), limits=hr.Limits(max_records=10))
    world.run()
    rows = list(world.sink.rows)
    world.store.set_offsets(world.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))

    def move_again(event):
        if isinstance(event, events.BatchStarted):
            state = world.store.read()[0]
            world.store._change(lambda _: replace(state, progress=replace(state.progress, epoch=2)))

    world.react = move_again
    with pytest.raises(OffsetConflict, match="moved back"):
        world.run()
    assert world.sink.rows == rows
