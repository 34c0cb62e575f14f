"""Offsets that are moved back: what is read again is stored again."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.core.state import AuditEntry
from headrace.errors import OffsetConflict
from headrace.testing.fakes import FakeIdempotentSink, FakeNumberedSink
from support.simulation import A, interrupted, pending_batch, records, simulate


@pytest.mark.parametrize("sink", [FakeIdempotentSink, FakeNumberedSink])
@pytest.mark.parametrize("cut", [10, 7])
def test_records_read_again_after_a_reset_are_stored_again_in_batches_of_any_size(sink, cut):
    sim = simulate({A: 10}, guarantee="exactly-once", sink=sink(), limits=hr.Limits(max_records=cut))
    for epoch in range(3):
        assert sim.progress.epoch == epoch
        sim.run()
        assert sim.sink.rows == records(a=10) * (epoch + 1)
        sim.store.set_offsets(sim.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))


@pytest.mark.parametrize("sink", [FakeIdempotentSink, FakeNumberedSink])
@pytest.mark.parametrize("cut", [10, 7])
def test_a_reset_that_drops_a_stored_pending_batch_stores_it_again_in_batches_of_any_size(sink, cut):
    left = pending_batch((A, 0, 10))
    sim = simulate(
        {A: 10}, guarantee="exactly-once", sink=sink(), progress=interrupted(left), limits=hr.Limits(max_records=cut)
    )
    sim.sink.write(left, records(a=10))  # by a run that was killed before it could commit
    sim.store.set_offsets(sim.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))
    sim.run()
    assert sim.sink.rows == records(a=10) * 2


def test_a_batch_planned_before_the_offsets_were_moved_back_is_refused():
    sim = simulate({A: 10}, guarantee="exactly-once", sink=FakeIdempotentSink(), limits=hr.Limits(max_records=10))
    sim.run()
    rows = list(sim.sink.rows)
    sim.store.set_offsets(sim.progress, {A: 0}, AuditEntry(1.0, "somebody", "reset"))

    def move_again(event):
        if isinstance(event, events.BatchStarted):
            state = sim.store.read()[0]
            sim.store.change(lambda _: replace(state, progress=replace(state.progress, epoch=2)))

    sim.on_event = move_again
    with pytest.raises(OffsetConflict, match="moved back"):
        sim.run()
    assert sim.sink.rows == rows
