"""A run as a process: how signals become a gentle stop, and what the deadline does."""

import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace as hr
from headrace import events, launch, locations, sinks, stores
from headrace.errors import ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.heartbeat import this_run
from headrace.spark import engine, session
from headrace.spark.inputs import Inputs

SOON = 10.0


@pytest.fixture
def heard():
    return queue.SimpleQueue()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_a_stop_and_says_which_it_was(number, heard):
    with launch._Signals(drain=SOON) as signals:
        signals.direct_to(heard.put, lambda: heard.put("cut off"))
        os.kill(os.getpid(), number)
        assert heard.get(timeout=SOON) == number.name
    assert heard.empty()
    assert not signals.overdue


def test_a_signal_heard_while_spark_was_starting_is_not_lost(heard):
    with launch._Signals(drain=SOON) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        signals.direct_to(heard.put, lambda: None)
        assert heard.get(timeout=SOON) == "SIGTERM"


@pytest.mark.parametrize(("number", "raised"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", launch._StoppedEarly)])
def test_a_signal_interrupts_the_start_of_spark_at_once(number, raised):
    with launch._Signals(drain=SOON) as signals:
        with pytest.raises(raised), signals.leaving_at_once():
            os.kill(os.getpid(), signal.Signals[number])
            threading.Event().wait(SOON)
        assert not signals.heard(0)


def test_at_the_deadline_the_batch_in_hand_is_cut_off(heard):
    with launch._Signals(drain=0.01) as signals:
        signals.direct_to(heard.put, lambda: heard.put("cut off"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert [heard.get(timeout=SOON), heard.get(timeout=SOON)] == ["SIGTERM", "cut off"]
        assert signals.overdue


def test_the_handlers_before_are_back_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with launch._Signals(drain=SOON) as signals:
        assert signal.getsignal(signal.SIGTERM) == signals._hear
        signals.listen()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_outside_the_main_thread_the_signals_of_the_host_stay_its_own():
    before = signal.getsignal(signal.SIGTERM)
    during = []

    def elsewhere():
        with launch._Signals(drain=SOON):
            during.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(SOON)
    assert during == [before]


def a_pipeline(**changes):
    arguments = {
        "name": "clicks",
        "source": hr.Kafka("localhost:1", topics=["clicks"]),
        "sink": sinks.Memory(),
        "guarantee": "at-least-once",
        "offsets": stores.Memory(),
        **changes,
    }
    return hr.Pipeline(**arguments)


def test_an_unknown_end_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="until='done' is unknown") as refused:
        a_pipeline().run(until="done")
    assert refused.value.hint == 'until="caught-up"'


def test_what_a_transform_raises_on_no_rows_waits_for_a_batch_and_our_own_errors_do_not(monkeypatch):
    from headrace.spark import plan

    def raising(error):
        def preview(*_):
            raise error

        return preview

    monkeypatch.setattr(plan, "preview", raising(IndexError("no first row")))
    assert launch.check_transform(a_pipeline(), None) is None
    monkeypatch.setattr(plan, "preview", raising(ConfigError("no such column")))
    with pytest.raises(HeadraceError, match="no such column"):
        launch.check_transform(a_pipeline(), None)


@pytest.fixture
def running(tmp_path, monkeypatch):
    """The pid of a run of `clicks`, and where its offsets are; Spark cannot be started."""

    def create(*_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "create", create)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with stores.SQLite(tmp_path / "offsets.db").open("clicks") as store:
            store.sign(replace(this_run(), pid=child.pid, started=time.time()))
        yield child.pid, lambda: stores.SQLite(tmp_path / "offsets.db")
        child.kill()


def starts():
    def run(store, **more):
        return a_pipeline(offsets=store).run(**more)

    def loop(store, **more):
        return hr.stream(hr.Kafka("localhost:1", topics=["clicks"]), offsets=store, **more)

    return [run, loop]


@pytest.mark.parametrize("start", starts(), ids=["run", "stream"])
def test_a_second_start_is_refused_before_spark_starts_and_take_over_is_not(running, start):
    pid, store = running
    with pytest.raises(OffsetConflict, match=f"clicks is running already: pid {pid} on") as refused:
        start(store())
    assert refused.value.exit_code == 3
    with pytest.raises(AssertionError, match="Spark was started"):
        start(store(), take_over=True)


def test_a_standby_is_not_refused_before_spark_starts(running):
    _, store = running
    with pytest.raises(AssertionError, match="Spark was started"):
        a_pipeline(offsets=store()).run(standby=True)


class Stopped:
    """A run that ends before it has read where it stands."""

    def __init__(self, *_, observer, **__):
        self._observer = observer

    def stop(self, reason):
        raise AssertionError(reason)

    def run(self, until):
        self._observer(events.RunStopped(0, 0, None))
        return launch.Summary(0, 0)


def left_of_runs():
    """The threads of Python, and those of librdkafka: a client that is not closed has some."""
    gc.collect()
    clients = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            clients.append((task / "comm").read_text().strip())
    return Counter(thread.name for thread in threading.enumerate()) + Counter(
        name for name in clients if name.startswith("rdk:")
    )


STEPS = {
    "the files of the last run": (locations, "moved", lambda pipeline: []),
    "the sources": (Inputs, "of", lambda spark, pipeline: object()),
    "a loop": (launch, "refuse_loops", lambda pipeline: True),
    "the transform": (launch, "check_transform", lambda pipeline, inputs: None),
    "the clusters": (launch, "connected", launch.connected),
    "the engine": (engine, "DirectEngine", lambda *_, **__: object()),
    "the run": (Stopped, "run", Stopped.run),
}
"""What a start does once its observers are there, step by step."""


@pytest.fixture
def starting(monkeypatch):
    """A start without Spark. `starting(step, error)` makes that step fail, `starting()` none."""
    monkeypatch.setattr(
        launch, "session_for", lambda *_: SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=None))
    )
    monkeypatch.setattr(launch, "Runner", Stopped)

    def start(step=None, error=None, **more):
        def fail(*_, **__):
            raise error

        for name, (where, attribute, works) in STEPS.items():
            monkeypatch.setattr(where, attribute, fail if name == step else works)
        sources = {name: hr.Kafka("localhost:1", topics=[name]) for name in ("clicks", "views")}
        pipeline = a_pipeline(source=sources, offsets=stores.Memory(mirror=True), transform=lambda rows: rows["clicks"])
        return pipeline.run(**more)

    return start


def settled(before):
    """What is left more than `before`, once what was let go of has ended."""
    deadline = time.monotonic() + SOON
    while (more := left_of_runs() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return more


@pytest.mark.parametrize(
    "error", [ConfigError("no"), ValueError("no"), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("step", STEPS)
def test_a_start_that_fails_leaves_no_thread_and_no_client(starting, step, error):
    before = left_of_runs()
    with pytest.raises(type(error)):
        starting(step, error)
    error.__traceback__ = None  # which holds what the failed start had
    assert settled(before) == {}


@pytest.mark.parametrize("step", ["the sources", "a loop"])
def test_a_start_that_is_stopped_while_nobody_answers_leaves_no_thread_and_no_client(starting, step):
    before = left_of_runs()

    def stop(event):
        assert isinstance(event, events.Retrying)
        os.kill(os.getpid(), signal.SIGTERM)

    assert starting(step, RetriableError("nobody answers"), observer=stop) == launch.Summary(0, 0)
    assert settled(before) == {}


def test_a_run_that_ends_leaves_no_thread_and_no_client(starting):
    before = left_of_runs()
    assert starting() == launch.Summary(0, 0)
    assert settled(before) == {}
