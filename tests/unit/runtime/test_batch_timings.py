"""Where the time of a batch went: its phases and the scheduling delay."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.errors import RetriableError
from headrace.testing.fakes import FakeClock, fail_first
from support.simulation import A, NaiveIdempotentSink, simulate

SECONDS = {"begin": 100, "commit": 200}


def tick(sim):
    """Let each part of a batch take its time: 1 s a request to the cluster, 30 s a write, and SECONDS of the store."""
    clock = sim.clock = FakeClock()
    sim.cluster.before_request = lambda requests: clock.advance(1)
    sim.sink.before_write = lambda batch: clock.advance(30)
    sim.pipeline.store.before_call = lambda name, batch: clock.advance(SECONDS.get(name, 0))
    return clock


def test_a_batch_reports_the_seconds_of_each_phase():
    sim = simulate({A: 10}, limits=hr.Limits(max_records=5))
    tick(sim)
    sim.run()
    first, second = sim.events_of(events.BatchDone)
    # The end offsets and the topic's id. Before the first batch: the topics; their first positions are stored.
    assert second.phases == events.Phases(metadata=2, plan=0, write=30, commit=300)
    assert first.phases == replace(second.phases, metadata=202)
    assert first.seconds == first.phases.write + first.phases.commit


@pytest.mark.parametrize(
    ("guarantee", "commit"), [("at-most-once", 200), ("at-least-once", 300), ("exactly-once", 300)]
)
def test_the_commit_phase_includes_every_call_of_the_store(guarantee, commit):
    sim = simulate({A: 10}, guarantee=guarantee, sink=NaiveIdempotentSink())
    tick(sim)
    sim.run()
    assert [done.phases.commit for done in sim.events_of(events.BatchDone)] == [commit]


def test_the_scheduling_delay_is_how_long_records_waited_for_the_batch_before():
    sim = simulate({A: 10}, limits=hr.Limits(max_records=5))
    tick(sim)
    sim.run()
    first, second = sim.events_of(events.BatchDone)
    assert first.scheduling_delay == 1  # the topic's id was asked for
    assert second.scheduling_delay == first.seconds + 2


def test_the_scheduling_delay_counts_from_when_records_were_seen():
    sim = simulate({A: 0}, limits=hr.Limits(min_records=10, max_delay=60))
    clock = FakeClock()
    sim.clock = clock

    def tick(asked):
        clock.advance(10.0)
        sim.cluster.end_offsets[A] = 3 if asked > 5 else 0

    sim.cluster.before_request = tick
    sim.stop_on(events.BatchDone)
    sim.run(None)
    (done,) = sim.events_of(events.BatchDone)
    assert 60 <= done.scheduling_delay <= 80


def test_records_of_a_failed_batch_keep_waiting():
    sim = simulate({A: 5}, sink=NaiveIdempotentSink(), guarantee="at-most-once")
    tick(sim)
    sim.cluster.end_offsets[A] = 10
    sim.sink.before_write = fail_first(1, RetriableError("away"))
    sim.run()
    assert sim.events_of(events.BatchDone) == []  # at-most-once gave the batch up

    sim = simulate({A: 10}, sink=NaiveIdempotentSink(), guarantee="exactly-once")
    clock = tick(sim)
    fail = fail_first(1, RetriableError("away"))
    sim.sink.before_write = lambda batch: (clock.advance(30), fail(batch))
    sim.run()
    (done,) = sim.events_of(events.BatchDone)
    assert done.scheduling_delay is None  # an earlier attempt planned it
    assert (done.phases.metadata, done.phases.plan, done.phases.commit) == (0, 0, 200)
