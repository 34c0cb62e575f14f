"""The lease of a run in its store: there while the run lives, gone when it ends."""

import os
from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.errors import BadRecord, RetriableError
from headrace.testing.fakes import FakeSink, FakeStore, fail_first
from support.simulation import QUICK, A, simulate


def test_a_run_holds_a_lease_in_the_store_until_it_ends():
    sim = simulate({A: 10})
    during = []
    sim.sink.before_write = lambda batch: during.append(sim.store.lease())
    sim.run()
    assert during[0].pid == os.getpid()
    assert sim.store.lease() is None


def test_a_run_that_ends_with_a_translated_error_releases_its_lease():
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(1, ValueError("in the transform"))))
    sim.engine.translate = lambda error: BadRecord("clicks[0] offset 3")
    with pytest.raises(BadRecord):
        sim.run()
    assert sim.store.lease() is None


def test_a_run_that_uses_up_its_attempts_releases_its_lease():
    sink = FakeSink(before_write=fail_first(9, RetriableError("the sink is down")))
    sim = simulate({A: 10}, sink=sink, retry=replace(QUICK, attempts=2))
    with pytest.raises(RetriableError):
        sim.run()
    assert sim.store.lease() is None


@pytest.mark.parametrize("at", [events.BatchStarted, events.Retrying])
def test_a_run_that_is_stopped_between_two_attempts_releases_its_lease(at):
    sink = FakeSink(before_write=fail_first(9, RetriableError("the sink is down")))
    sim = simulate({A: 10}, sink=sink, retry=hr.Retry(first="10m", longest="10m"))
    signs = []

    def stop(event):
        if isinstance(event, at):
            signs.append(sim.store.lease())
            sim.stop("test")

    sim.on_event = stop
    sim.run(None)
    assert [run.pid for run in signs] == [os.getpid()]
    assert sim.store.lease() is None


def test_a_store_that_is_down_when_a_run_ends_does_not_hide_its_error():
    store = FakeStore(before_call=lambda name, batch: fail() if name == "open" and "open" in store.calls[:-1] else None)
    fail = fail_first(1, ConnectionError("the store is down"))
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(1, BadRecord("clicks[0] offset 3"))), store=store)
    with pytest.raises(BadRecord):
        sim.run()
    assert store.calls.count("open") == 2
