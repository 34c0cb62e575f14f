"""A stop: the batch in flight is finished, and every wait ends."""

import threading
import time

import headrace as hr
from headrace import events
from headrace.types import Progress
from support.fake_runs import A, Plain, World, failing, records

SOON = 20.0


def test_a_stop_lets_the_batch_in_hand_finish_and_starts_no_other():
    world = World({A: 100}, limits=hr.Limits(max_records=10))
    runner = world.runner()
    world.sink.before = lambda batch: runner.stop("SIGTERM") if batch.id == 2 else None
    summary = runner.run()
    assert (summary.batches, summary.records) == (2, 20)
    assert world.progress.offsets == {A: 20}
    assert world.progress.pending is None
    # Said at once, not when the batch is done: whoever pressed Ctrl-C is waiting for a word.
    assert [type(event) for event in world.seen[-4:]] == [
        events.BatchStarted,
        events.Stopping,
        events.BatchDone,
        events.RunStopped,
    ]


def test_a_stop_before_the_start_does_nothing():
    world = World({A: 100})
    runner = world.runner()
    runner.stop("SIGTERM")
    assert runner.run().batches == 0
    assert world.cluster.asked == 0
    assert world.progress == Progress()


def test_a_stop_ends_the_wait_for_the_next_retry():
    retry = hr.Retry(first="10m", longest="10m")
    world = World({A: 10}, sink=Plain(before=failing(10**9, ValueError("no"))), retry=retry)
    runner = world.runner()
    world.react = lambda event: threading.Timer(0.01, runner.stop, ["test"]).start() if _is_retry(event) else None
    began = time.monotonic()
    runner.run()
    assert time.monotonic() - began < SOON
    assert len(world.all(events.Retrying)) == 1


def _is_retry(event):
    return isinstance(event, events.Retrying)


def test_a_stop_ends_the_wait_for_new_records():
    world = World({A: 10})
    runner = world.runner(idle=600.0)
    world.react = lambda event: (
        threading.Timer(0.01, runner.stop, ["test"]).start() if isinstance(event, events.CaughtUp) else None
    )
    began = time.monotonic()
    assert runner.run().records == 10
    assert time.monotonic() - began < SOON


def test_a_batch_that_fails_after_the_stop_is_left_for_the_next_run():
    world = World({A: 10})
    runner = world.runner()

    def stop_and_fail(_):
        runner.stop("SIGTERM")
        raise ValueError("cut off")

    world.sink.before = stop_and_fail
    assert runner.run().batches == 0
    assert world.progress.pending is not None
    world.sink.before = None
    world.run()
    assert world.sink.rows == records(a=10)


def test_the_first_reason_to_stop_is_the_one_that_is_told():
    world = World({A: 10})
    runner = world.runner()
    runner.stop("SIGTERM")
    runner.stop("SIGINT")
    runner.run()
    assert world.all(events.Stopping) == [events.Stopping("SIGTERM")]
