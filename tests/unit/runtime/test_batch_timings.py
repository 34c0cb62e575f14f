"""Where the time of a batch went: its phases and the scheduling delay."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.errors import RetriableError
from support.fake_runs import A, Idempotent, World, failing


class Ticking:
    """A clock that goes on by what each part of a batch takes: 1 s a question to the cluster, and so on."""

    def __init__(self, world):
        self.now = 0.0
        world.cluster.before = lambda asked: self.pass_(1)
        world.sink.before = lambda batch: self.pass_(30)
        for name, seconds in (("begin", 100), ("commit", 200)):
            self._slow_down(world.pipeline.store, name, seconds)

    def pass_(self, seconds):
        self.now += seconds

    def _slow_down(self, store, name, seconds):
        call = getattr(store, name)

        def slow(batch):
            self.pass_(seconds)
            call(batch)

        setattr(store, name, slow)

    def __call__(self):
        return self.now


def test_a_batch_says_where_its_time_went():
    world = World({A: 10}, limits=hr.Limits(max_records=5))
    world.run(clock=Ticking(world))
    first, second = world.all(events.BatchDone)
    # The end offsets and the topic's id. Before the first batch: the topics; their first positions are stored.
    assert second.phases == events.Phases(metadata=2, plan=0, write=30, commit=300)
    assert first.phases == replace(second.phases, metadata=202)
    assert first.seconds == first.phases.write + first.phases.commit


@pytest.mark.parametrize(
    ("guarantee", "commit"), [("at-most-once", 200), ("at-least-once", 300), ("exactly-once", 300)]
)
def test_the_commit_phase_has_every_call_of_the_store(guarantee, commit):
    world = World({A: 10}, guarantee=guarantee, sink=Idempotent())
    world.run(clock=Ticking(world))
    assert [done.phases.commit for done in world.all(events.BatchDone)] == [commit]


def test_the_scheduling_delay_is_how_long_records_waited_for_the_batch_before():
    world = World({A: 10}, limits=hr.Limits(max_records=5))
    world.run(clock=Ticking(world))
    first, second = world.all(events.BatchDone)
    assert first.scheduling_delay == 1  # the topic's id was asked for
    assert second.scheduling_delay == first.seconds + 2


def test_the_scheduling_delay_counts_from_when_records_were_seen():
    world = World({A: 0}, limits=hr.Limits(min_records=10, max_delay=60))
    now = [0.0]
    runner = world.runner(clock=lambda: now[0])

    def tick(asked):
        now[0] += 10.0
        world.cluster.ends_[A] = 3 if asked > 5 else 0

    world.cluster.before = tick
    world.react = lambda event: runner.stop("test") if isinstance(event, events.BatchDone) else None
    runner.run(None)
    (done,) = world.all(events.BatchDone)
    assert 60 <= done.scheduling_delay <= 80


def test_a_batch_that_failed_keeps_its_records_waiting():
    world = World({A: 5}, sink=Idempotent(), guarantee="at-most-once")
    clock = Ticking(world)
    world.cluster.ends_[A] = 10
    world.sink.before = failing(1, RetriableError("away"))
    world.run(clock=clock)
    assert world.all(events.BatchDone) == []  # at-most-once gave the batch up

    world = World({A: 10}, sink=Idempotent(), guarantee="exactly-once")
    clock = Ticking(world)
    fail = failing(1, RetriableError("away"))
    world.sink.before = lambda batch: (clock.pass_(30), fail(batch))
    world.run(clock=clock)
    (done,) = world.all(events.BatchDone)
    assert done.scheduling_delay is None  # an earlier attempt planned it
    assert (done.phases.metadata, done.phases.plan, done.phases.commit) == (0, 0, 200)
