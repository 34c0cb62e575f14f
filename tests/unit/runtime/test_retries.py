"""Errors of a run: which are retried, which end it, and what is closed and opened in between."""

import pytest

import headrace as hr
from headrace import events
from headrace.errors import BadRecord, ConfigError, DataLoss, OffsetConflict, RetriableError
from headrace.testing.fakes import FakeSink, fail_first
from support.simulation import A, records, simulate


@pytest.mark.parametrize("error", [RetriableError("the store is away"), ValueError("the transform raised")])
def test_a_retriable_error_is_retried_until_it_passes(error):
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(40, error)))
    sim.stop_on(events.CaughtUp)
    summary = sim.run(None)
    assert summary.records == 10
    assert sim.sink.rows == records(a=10)
    assert [event.attempt for event in sim.events_of(events.Retrying)] == list(range(1, 41))
    assert all(event.error is error for event in sim.events_of(events.Retrying))


def test_the_waits_between_retries_grow_up_to_a_limit():
    sim = simulate(
        {A: 10}, sink=FakeSink(before_write=fail_first(6, ValueError("no"))), retry=hr.Retry(first="1ms", longest=0.008)
    )
    sim.run()
    assert [event.delay for event in sim.events_of(events.Retrying)] == [0.001, 0.002, 0.004, 0.008, 0.008, 0.008]


def test_the_waits_stay_finite_however_long_it_takes():
    assert hr.Retry().policy().delay(1) == 0.5
    assert hr.Retry().policy().delay(2) == 1.0
    assert hr.Retry().policy().delay(10_000) == 30.0


def test_the_waits_start_small_again_after_progress():
    sim = simulate({A: 20}, limits=hr.Limits(max_records=10))
    trouble = {1: fail_first(3, ValueError("first")), 2: fail_first(2, ValueError("second"))}
    sim.sink.before_write = lambda batch: trouble[batch.id]()
    sim.run()
    assert [event.attempt for event in sim.events_of(events.Retrying)] == [1, 2, 3, 1, 2]


def test_a_cluster_that_does_not_answer_at_the_start_is_asked_again():
    sim = simulate({A: 10})
    sim.cluster.before_request = fail_first(5, RetriableError("Kafka does not answer"))
    assert sim.run().records == 10
    assert len(sim.events_of(events.Retrying)) == 5


def test_a_run_reports_its_start_once_however_often_the_cluster_does_not_answer():
    sim = simulate({A: 10})
    sim.cluster.before_request = fail_first(5, RetriableError("Kafka does not answer"))
    sim.run()
    assert len(sim.events_of(events.RunStarted)) == 1


def test_a_cluster_outage_during_a_run_loses_and_doubles_nothing():
    sim = simulate({A: 30}, limits=hr.Limits(max_records=10))
    fail = fail_first(3, RetriableError("gone"))
    sim.cluster.before_request = lambda asked: fail() if asked > 1 else None
    sim.run()
    assert sim.sink.rows == records(a=30)
    assert len(sim.events_of(events.Retrying)) == 3


def test_store_and_sink_are_closed_and_opened_again_after_each_failure():
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(2, ValueError("no"))))
    sim.run()
    assert [call for call in sim.pipeline.store.calls if call in ("open", "close")] == ["open", "close"] * 3
    assert (sim.sink.opened, sim.sink.closed) == (3, 3)


def test_the_store_is_closed_if_the_sink_does_not_open():
    class Closed(FakeSink):
        def open(self, pipeline):
            raise ConfigError("no such directory")

    sim = simulate({A: 10}, sink=Closed())
    with pytest.raises(ConfigError):
        sim.run()
    assert sim.pipeline.store.calls == ["open", "close"]


@pytest.mark.parametrize(
    "error", [ConfigError("fix it"), OffsetConflict("another"), DataLoss("gone"), BadRecord("not JSON")]
)
def test_an_error_that_is_not_retriable_ends_the_run(error):
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(100, error)))
    with pytest.raises(type(error)) as raised:
        sim.run()
    assert raised.value is error
    assert sim.events_of(events.Retrying) == []
    assert sim.events[-1] == events.RunStopped(0, 0, error, 0)


def test_a_driver_that_is_not_installed_ends_the_run():
    class Uninstalled(FakeSink):
        def open(self, pipeline):
            raise ImportError("duckdb is not installed; it comes with the extra: pip install 'headrace[duckdb]'")

    sim = simulate({A: 10}, sink=Uninstalled())
    sim.stop_on(events.Retrying)
    with pytest.raises(ImportError, match=r"headrace\[duckdb\]"):
        sim.run()


@pytest.mark.parametrize("error", [RetriableError("the store is away"), ValueError("the transform raised")])
def test_fail_fast_ends_the_run_at_the_first_error(error):
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(1, error)))
    with pytest.raises(type(error)) as raised:
        sim.run(fail_fast=True)
    assert raised.value is error
    assert sim.events_of(events.Retrying) == []
    assert sim.events[-1].error is error


def test_fail_fast_leaves_the_batch_in_the_journal_for_the_next_run():
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(1, ValueError("no"))))
    with pytest.raises(ValueError, match="no"):
        sim.run(fail_fast=True)
    sim.run(fail_fast=True)
    assert sim.sink.rows == records(a=10)
    assert sim.events_of(events.BatchStarted)[1].replay


def test_a_translated_error_is_raised_from_the_one_of_the_driver():
    driver, ours = RuntimeError("py4j: 200 lines"), BadRecord("clicks[0] offset 3")
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(1, driver)))
    sim.engine.translate = lambda error: ours if error is driver else error
    with pytest.raises(BadRecord) as raised:
        sim.run()
    assert raised.value is ours
    assert raised.value.__cause__ is driver


def test_an_error_of_headrace_keeps_its_cause():
    cause = OSError("disk")

    def fail(_):
        raise ConfigError("cannot write") from cause

    sim = simulate({A: 10}, sink=FakeSink(before_write=fail))
    with pytest.raises(ConfigError) as raised:
        sim.run()
    assert raised.value.__cause__ is cause
