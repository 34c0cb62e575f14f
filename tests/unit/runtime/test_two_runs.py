"""Two runs of one pipeline at once: one wins, the other stops."""

import pytest

import headrace as hr
from headrace import events
from headrace.errors import OffsetConflict
from headrace.testing.fakes import FakeNumberedSink, FakeStore, fail_first
from support.simulation import A, Killed, NaiveIdempotentSink, records, simulate


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_the_loser_of_two_runs_stops_with_offset_conflict(guarantee):
    sim = simulate({A: 100}, guarantee=guarantee, sink=NaiveIdempotentSink(), limits=hr.Limits(max_records=10))
    rival = simulate(
        {A: 100},
        guarantee=guarantee,
        sink=NaiveIdempotentSink(),
        store=FakeStore(sim.pipeline.store.shared),
        limits=hr.Limits(max_records=7),
    )
    sim.on_event = lambda event: _once(rival) if isinstance(event, events.BatchDone) else None

    def _once(other):
        sim.on_event = lambda event: None
        other.run(rival="take-over")

    with pytest.raises(OffsetConflict) as lost:
        sim.run()
    assert lost.value.exit_code == 3
    assert "another run" in lost.value.hint
    assert sorted(sim.sink.rows + rival.sink.rows) == records(a=100)
    assert sim.events_of(events.Retrying) == []


def test_a_rival_that_commits_during_the_write_wins():
    sim = simulate({A: 10})
    rival = simulate({A: 10}, store=FakeStore(sim.pipeline.store.shared))
    sim.sink.before_write = lambda batch: rival.run(rival="take-over")
    with pytest.raises(OffsetConflict):
        sim.run()
    assert sim.progress.offsets == {A: 10}
    assert rival.sink.rows == records(a=10)


@pytest.mark.parametrize("answered", ["load", "last_batch"])
def test_a_numbered_sink_stores_a_batch_once_though_a_run_was_suspended_while_it_started(answered):
    suspend_after = []

    class Store(FakeStore):
        def load(self):
            return suspended("load", super().load())

    class Sink(FakeNumberedSink):
        def last_batch(self):
            return suspended("last_batch", super().last_batch())

    def suspended(call, answer):
        """After `call` has its answer, let another run write the next batch and die before the commit."""
        if call in suspend_after:
            suspend_after.clear()
            sim.on_event = die_at_commit
            with pytest.raises(Killed):
                sim.run()
            sim.on_event = store.before_call = None
        return answer

    def die_at_commit(event):
        if isinstance(event, events.BatchStarted):
            store.before_call = lambda name, batch: kill() if name == "commit" else None

    store, kill = Store(), fail_first(1, Killed())
    sim = simulate({A: 10}, guarantee="exactly-once", sink=Sink(), store=store)
    sim.run()
    sim.cluster.produce(A, 5)
    suspend_after.append(answered)
    sim.run()
    assert suspend_after == []
    assert sim.sink.rows == records(a=15)
    assert [batch.id for batch in sim.sink.batches] == [1, 2]
    assert sim.progress.offsets == {A: 15}
    assert sim.progress.pending is None
