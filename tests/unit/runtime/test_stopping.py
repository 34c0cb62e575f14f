"""A stop: the batch in flight is finished, and every wait ends."""

import threading
import time

import headrace as hr
from headrace import events
from headrace.testing.fakes import FakeSink, fail_first
from headrace.types import Progress
from support.simulation import A, records, simulate

SOON = 20.0


def stop_soon_after(sim, kind):
    """Stop the run from another thread, when it waits after an event."""
    sim.on_event = lambda event: threading.Timer(0.01, sim.stop).start() if isinstance(event, kind) else None


def test_a_stop_finishes_the_batch_in_flight_and_starts_no_other():
    sim = simulate({A: 100}, limits=hr.Limits(max_records=10))
    sim.sink.before_write = lambda batch: sim.stop("SIGTERM") if batch.id == 2 else None
    summary = sim.run(None)
    assert (summary.batches, summary.records) == (2, 20)
    assert sim.progress.offsets == {A: 20}
    assert sim.progress.pending is None
    # Said at once, not when the batch is done: whoever pressed Ctrl-C is waiting for a word.
    assert [type(event) for event in sim.events[-4:]] == [
        events.BatchStarted,
        events.Stopping,
        events.BatchDone,
        events.RunStopped,
    ]


def test_a_stop_before_the_start_does_nothing():
    sim = simulate({A: 100})
    sim.stop("SIGTERM")
    assert sim.run(None).batches == 0
    assert sim.cluster.requests == 0
    assert sim.progress == Progress()


def test_a_stop_ends_the_wait_for_the_next_retry():
    retry = hr.Retry(first="10m", longest="10m")
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(10**9, ValueError("no"))), retry=retry)
    stop_soon_after(sim, events.Retrying)
    began = time.monotonic()
    sim.run(None)
    assert time.monotonic() - began < SOON
    assert len(sim.events_of(events.Retrying)) == 1


def test_a_stop_ends_the_wait_for_new_records():
    sim = simulate({A: 10})
    stop_soon_after(sim, events.CaughtUp)
    began = time.monotonic()
    assert sim.run(None, idle=600.0).records == 10
    assert time.monotonic() - began < SOON


def test_a_batch_that_fails_after_the_stop_is_left_for_the_next_run():
    sim = simulate({A: 10})

    def stop_and_fail(_):
        sim.stop("SIGTERM")
        raise ValueError("cut off")

    sim.sink.before_write = stop_and_fail
    assert sim.run(None).batches == 0
    assert sim.progress.pending is not None
    sim.sink.before_write = None
    sim.run()
    assert sim.sink.rows == records(a=10)


def test_the_first_reason_to_stop_is_reported():
    sim = simulate({A: 10})
    sim.stop("SIGTERM")
    sim.stop("SIGINT")
    sim.run(None)
    assert sim.events_of(events.Stopping) == [events.Stopping("SIGTERM")]
