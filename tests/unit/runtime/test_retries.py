"""Errors of a run: which are retried, which end it, and what is closed and opened in between."""

import pytest

import headrace as hr
from headrace import events, stores
from headrace.errors import BadRecord, ConfigError, DataLoss, OffsetConflict, RetriableError
from support.fake_runs import A, Plain, World, failing, records, until_idle


@pytest.mark.parametrize("error", [RetriableError("the store is away"), ValueError("the transform raised")])
def test_an_error_that_may_pass_is_retried_until_it_has(error):
    world = World({A: 10}, sink=Plain(before=failing(40, error)))
    runner = world.runner()
    until_idle(world, runner)
    summary = runner.run()
    assert summary.records == 10
    assert world.sink.rows == records(a=10)
    assert [event.attempt for event in world.all(events.Retrying)] == list(range(1, 41))
    assert all(event.error is error for event in world.all(events.Retrying))


def test_the_waits_between_retries_grow_up_to_a_limit():
    world = World({A: 10}, sink=Plain(before=failing(6, ValueError("no"))), retry=hr.Retry(first="1ms", longest=0.008))
    world.run()
    assert [event.delay for event in world.all(events.Retrying)] == [0.001, 0.002, 0.004, 0.008, 0.008, 0.008]


def test_the_waits_stay_finite_however_long_it_takes():
    assert hr.Retry().policy().delay(1) == 0.5
    assert hr.Retry().policy().delay(2) == 1.0
    assert hr.Retry().policy().delay(10_000) == 30.0


def test_after_progress_the_waits_begin_small_again():
    world = World({A: 20}, limits=hr.Limits(max_records=10))
    trouble = {1: failing(3, ValueError("first")), 2: failing(2, ValueError("second"))}
    world.sink.before = lambda batch: trouble[batch.id]()
    world.run()
    assert [event.attempt for event in world.all(events.Retrying)] == [1, 2, 3, 1, 2]


def test_a_cluster_that_does_not_answer_at_the_start_is_asked_until_it_does():
    world = World({A: 10})
    world.cluster.before = failing(5, RetriableError("Kafka does not answer"))
    assert world.run().records == 10
    assert len(world.all(events.Retrying)) == 5


def test_a_run_says_once_that_it_started_however_often_the_cluster_did_not_answer():
    world = World({A: 10})
    world.cluster.before = failing(5, RetriableError("Kafka does not answer"))
    world.run()
    assert len(world.all(events.RunStarted)) == 1


def test_a_cluster_that_goes_away_in_the_middle_costs_nothing():
    world = World({A: 30}, limits=hr.Limits(max_records=10))
    fail = failing(3, RetriableError("gone"))
    world.cluster.before = lambda asked: fail() if asked > 1 else None
    world.run()
    assert world.sink.rows == records(a=30)
    assert len(world.all(events.Retrying)) == 3


def test_store_and_sink_are_opened_anew_after_a_failure_and_closed_every_time():
    opened = []

    class Watched(stores.Memory):
        def open(self, pipeline):
            opened.append("open")
            return super().open(pipeline)

        def close(self):
            opened.append("close")

    world = World({A: 10}, sink=Plain(before=failing(2, ValueError("no"))))
    object.__setattr__(world.pipeline, "offsets", Watched(world.shared))
    world.run()
    assert opened == ["open", "close"] * 3
    assert (world.sink.opened, world.sink.closed) == (3, 3)


def test_what_was_opened_is_closed_when_the_other_cannot_be():
    closed = []

    class Watched(stores.Memory):
        def close(self):
            closed.append("store")

    class Closed(Plain):
        def open(self, pipeline):
            raise ConfigError("no such directory")

    world = World({A: 10}, sink=Closed())
    object.__setattr__(world.pipeline, "offsets", Watched(world.shared))
    with pytest.raises(ConfigError):
        world.run()
    assert closed == ["store"]


@pytest.mark.parametrize(
    "error", [ConfigError("fix it"), OffsetConflict("another"), DataLoss("gone"), BadRecord("not JSON")]
)
def test_an_error_that_repeating_cannot_cure_ends_the_run_at_once(error):
    world = World({A: 10}, sink=Plain(before=failing(100, error)))
    with pytest.raises(type(error)) as raised:
        world.run()
    assert raised.value is error
    assert world.all(events.Retrying) == []
    assert world.seen[-1] == events.RunStopped(0, 0, error, 0)


def test_a_driver_that_is_not_installed_ends_the_run_at_once():
    class Uninstalled(Plain):
        def open(self, pipeline):
            raise ImportError("duckdb is not installed; it comes with the extra: pip install 'headrace[duckdb]'")

    world = World({A: 10}, sink=Uninstalled())
    runner = world.runner()
    world.react = lambda event: runner.stop("would retry for ever") if isinstance(event, events.Retrying) else None
    with pytest.raises(ImportError, match=r"headrace\[duckdb\]"):
        runner.run("caught-up")


@pytest.mark.parametrize("error", [RetriableError("the store is away"), ValueError("the transform raised")])
def test_fail_fast_gives_up_at_the_first_error(error):
    world = World({A: 10}, sink=Plain(before=failing(1, error)))
    with pytest.raises(type(error)) as raised:
        world.run(fail_fast=True)
    assert raised.value is error
    assert world.all(events.Retrying) == []
    assert world.seen[-1].error is error


def test_fail_fast_leaves_the_batch_in_the_journal_for_the_next_run():
    world = World({A: 10}, sink=Plain(before=failing(1, ValueError("no"))))
    with pytest.raises(ValueError, match="no"):
        world.run(fail_fast=True)
    world.run(fail_fast=True)
    assert world.sink.rows == records(a=10)
    assert world.all(events.BatchStarted)[1].replay


def test_an_error_is_raised_in_our_own_terms_with_the_drivers_behind_it():
    driver, ours = RuntimeError("py4j: 200 lines"), BadRecord("clicks[0] offset 3")
    world = World({A: 10}, sink=Plain(before=failing(1, driver)))
    world.engine.translated = lambda error: ours if error is driver else error
    with pytest.raises(BadRecord) as raised:
        world.run()
    assert raised.value is ours
    assert raised.value.__cause__ is driver


def test_an_error_that_is_ours_already_keeps_the_cause_it_has():
    cause = OSError("disk")

    def fail(_):
        raise ConfigError("cannot write") from cause

    world = World({A: 10}, sink=Plain(before=fail))
    with pytest.raises(ConfigError) as raised:
        world.run()
    assert raised.value.__cause__ is cause
