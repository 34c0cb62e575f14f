"""Two runs of one pipeline at once: one wins, the other stops."""

import pytest

import headrace as hr
from headrace import events, stores
from headrace.errors import OffsetConflict
from support.fake_runs import A, Idempotent, Killed, Numbered, World, failing, records


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_of_two_runs_at_once_the_loser_stops_with_offset_conflict(guarantee):
    world = World({A: 100}, guarantee=guarantee, sink=Idempotent(), limits=hr.Limits(max_records=10))
    rival = World({A: 100}, guarantee=guarantee, sink=Idempotent(), limits=hr.Limits(max_records=7))
    object.__setattr__(rival.pipeline, "offsets", stores.Memory(world.shared))
    world.react = lambda event: _once(rival) if isinstance(event, events.BatchDone) else None

    def _once(other):
        world.react = lambda event: None
        other.run(rival="take-over")

    with pytest.raises(OffsetConflict) as lost:
        world.run()
    assert lost.value.exit_code == 3
    assert "another run" in lost.value.hint
    assert sorted(world.sink.rows + rival.sink.rows) == records(a=100)
    assert world.all(events.Retrying) == []


def test_a_rival_that_moves_on_during_the_write_wins():
    world = World({A: 10})
    rival = World({A: 10})
    object.__setattr__(rival.pipeline, "offsets", stores.Memory(world.shared))
    world.sink.before = lambda batch: rival.run(rival="take-over")
    with pytest.raises(OffsetConflict):
        world.run()
    assert world.progress.offsets == {A: 10}
    assert rival.sink.rows == records(a=10)


@pytest.mark.parametrize("answered", ["load", "last_batch"])
def test_a_numbered_sink_stores_a_batch_once_though_a_run_was_suspended_while_it_started(answered, monkeypatch):
    world = World({A: 10}, guarantee="exactly-once", sink=Numbered())
    world.run()
    world.cluster.ends_[A] = 15
    owner = stores.Memory if answered == "load" else Numbered
    ask = getattr(owner, answered)
    suspended = []

    def other_run(event):
        if isinstance(event, events.BatchStarted):
            monkeypatch.setattr(stores.Memory, "commit", failing(1, Killed()))

    def asked(self):
        answer = ask(self)
        if not suspended:
            suspended.append(answer)
            world.react = other_run
            with pytest.raises(Killed):
                world.run()
            world.react = lambda event: None
            monkeypatch.undo()
        return answer

    monkeypatch.setattr(owner, answered, asked)
    world.run()
    assert world.sink.rows == records(a=15)
    assert [batch.id for batch in world.sink.batches] == [1, 2]
    assert world.progress.offsets == {A: 15}
    assert world.progress.pending is None
