"""The lease of a run in its store: there while the run lives, gone when it ends."""

import os
from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.errors import BadRecord, RetriableError
from support.fake_runs import QUICK, A, Plain, World, failing


def test_a_run_signs_the_store_while_it_lives_and_leaves_no_sign_behind():
    world = World({A: 10})
    during = []
    world.sink.before = lambda batch: during.append(world.store.read()[0].run)
    world.run()
    assert during[0].pid == os.getpid()
    assert world.store.read()[0].run is None


def test_a_run_that_ends_with_an_error_that_the_engine_explains_leaves_no_sign_behind():
    world = World({A: 10}, sink=Plain(before=failing(1, ValueError("in the transform"))))
    world.engine.translated = lambda error: BadRecord("clicks[0] offset 3")
    with pytest.raises(BadRecord):
        world.run()
    assert world.store.read()[0].run is None


def test_a_run_that_uses_up_its_attempts_leaves_no_sign_behind():
    sink = Plain(before=failing(9, RetriableError("the sink is down")))
    world = World({A: 10}, sink=sink, retry=replace(QUICK, attempts=2))
    with pytest.raises(RetriableError):
        world.run()
    assert world.store.read()[0].run is None


@pytest.mark.parametrize("at", [events.BatchStarted, events.Retrying])
def test_a_run_that_is_stopped_between_two_attempts_leaves_no_sign_behind(at):
    sink = Plain(before=failing(9, RetriableError("the sink is down")))
    world = World({A: 10}, sink=sink, retry=hr.Retry(first="10m", longest="10m"))
    runner = world.runner()
    signs = []

    def stop(event):
        if isinstance(event, at):
            signs.append(world.store.read()[0].run)
            runner.stop("test")

    world.react = stop
    runner.run()
    assert [run.pid for run in signs] == [os.getpid()]
    assert world.store.read()[0].run is None


def test_a_store_that_is_down_when_a_run_ends_does_not_hide_its_error(monkeypatch):
    world = World({A: 10}, sink=Plain(before=failing(1, BadRecord("clicks[0] offset 3"))))
    opened = []

    def once(self, pipeline):
        opened.append(pipeline)
        if len(opened) > 1:
            raise ConnectionError("the store is down")
        return self

    monkeypatch.setattr(type(world.pipeline.store), "open", once)
    world.pipeline.store._pipeline = "clicks"
    with pytest.raises(BadRecord):
        world.run()
    assert len(opened) == 2
