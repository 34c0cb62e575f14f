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
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace as hr
from headrace import events, sinks, stores
from headrace.engine import engine
from headrace.engine.source_readers import SourceReaders
from headrace.errors import ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.runtime import file_locations, launch
from headrace.runtime.heartbeat import this_run
from headrace.runtime.runner import Summary
from headrace.spark import own_jobs, session

SOON = 10.0


@pytest.fixture
def heard():
    return queue.SimpleQueue()


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


@pytest.fixture
def spark_jobs(monkeypatch, heard):
    """Stands for the jobs of a run; what is cancelled is in `heard`."""

    class Jobs:
        def __init__(self, spark):
            self.when_made()

        def when_made(self):
            """Spark is up, and the run has not begun."""

        def adopt_thread(self):
            """There is no Spark."""

        def cancel(self, over):
            heard.put("cut off")
            assert over.wait(SOON)

    monkeypatch.setattr(own_jobs, "OwnJobs", Jobs)
    return Jobs


@pytest.fixture
def launched(monkeypatch, heard, spark_jobs):
    """Launch a run that is `work(stop)`. Spark is up at once; what is cancelled or observed is in `heard`."""

    def run(work, *, drain=SOON, session_for=lambda *_: None):
        monkeypatch.setattr(launch, "session_for", session_for)
        monkeypatch.setattr(launch, "carry_out", lambda pipeline, spark, stop, observe, **_: work(stop))
        return launch.launch(a_pipeline(), options={}, drain=drain, observer=heard.put)

    return run


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_a_stop_and_says_which_it_was(number, heard, launched):
    def work(stop):
        os.kill(os.getpid(), number)
        assert stop.requested.wait(SOON)
        return Summary(1, 5)

    assert launched(work) == Summary(1, 5)
    assert heard.get(timeout=SOON) == events.Stopping(number.name)
    assert heard.empty()


def test_a_signal_that_another_thread_receives_asks_for_a_stop(heard, launched):
    def work(stop):
        time.sleep(0.3)  # no event tells that the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert stop.requested.wait(SOON)
        return Summary(0, 0)

    launched(work)
    assert heard.get(timeout=SOON) == events.Stopping("SIGTERM")


def test_a_signal_received_before_the_run_has_begun_is_not_lost(heard, launched, spark_jobs):
    spark_jobs.when_made = lambda _: os.kill(os.getpid(), signal.SIGTERM)

    def work(stop):
        assert stop.requested.wait(SOON)
        return Summary(0, 0)

    launched(work)
    assert heard.get(timeout=SOON) == events.Stopping("SIGTERM")


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_interrupts_the_start_of_spark_at_once(number, raised, launched):
    def starting(*_):
        os.kill(os.getpid(), number)
        threading.Event().wait(SOON)

    def work(stop):
        raise AssertionError("the run began")

    with pytest.raises(KeyboardInterrupt) if raised else nullcontext():
        assert launched(work, session_for=starting) == Summary(0, 0)


def test_at_the_deadline_the_batch_in_flight_is_cut_off(heard, launched):
    def work(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.cancelled.wait(SOON)
        stop.abandoned = True
        return Summary(0, 0)

    with pytest.raises(HeadraceError, match="the batch in flight was not finished 0 s after the stop") as late:
        launched(work, drain=0.01)
    assert late.value.exit_code == 1
    assert [heard.get(timeout=SOON), heard.get(timeout=SOON)] == [events.Stopping("SIGTERM"), "cut off"]


def test_the_handlers_before_are_back_afterwards_also_those_that_spark_replaces(launched):
    before, during = handlers(), []

    def spark_with_a_handler_of_its_own(*_):
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work(stop):
        during.extend(handlers())
        return Summary(0, 0)

    launched(work, session_for=spark_with_a_handler_of_its_own)
    assert handlers() == before
    assert during[0] == during[1] != before[0]
    assert during[1] != signal.SIG_IGN


def test_a_start_leaves_the_signals_of_the_host_alone(launched):
    before, during = handlers(), []

    def work(stop):
        during.extend(handlers())
        return Summary(0, 0)

    launched(work)
    during.clear()
    launch.start(a_pipeline(), options={}).wait(SOON)
    assert during == before == handlers()


def test_outside_the_main_thread_the_signals_of_the_host_stay_its_own(launched):
    before, during = handlers(), []

    def work(stop):
        during.extend(handlers())
        return Summary(0, 0)

    thread = threading.Thread(target=launched, args=[work])
    thread.start()
    thread.join(SOON)
    assert during == before


def test_a_store_or_sink_that_a_run_has_open_is_refused_until_that_run_has_ended(launched):
    kept, go = stores.Memory(), threading.Event()

    def work(stop):
        assert go.wait(SOON)
        return Summary(0, 0)

    go.set()
    launched(work)  # which has put everything in place
    go.clear()
    with launch.start(a_pipeline(offsets=kept), options={}) as run:
        with pytest.raises(OffsetConflict, match="clicks is running already in this process"):
            a_pipeline(offsets=kept).start()
        with pytest.raises(ConfigError, match=r"orders: .* is the same object that the run of clicks has open"):
            a_pipeline(name="orders", offsets=kept).start()
        inner = sinks.Memory()
        with a_pipeline(name="other", sink=sinks.Fanout([inner, sinks.Console()])).start() as other:
            with pytest.raises(ConfigError, match="the run of other has open"):
                a_pipeline(name="orders", sink=inner).start()
            go.set()
            other.wait(SOON)
        run.wait(SOON)
        a_pipeline(offsets=kept).start().wait(SOON)


def test_a_start_that_fails_lets_go_of_its_store(launched):
    kept = stores.Memory()

    def no_spark(*_):
        raise ConfigError("Spark did not start")

    with pytest.raises(ConfigError, match="Spark did not start"):
        launched(lambda stop: Summary(0, 0), session_for=no_spark)
    for _ in range(2):
        with pytest.raises(ConfigError, match="Spark did not start"):
            a_pipeline(offsets=kept).start()


@pytest.mark.parametrize("begin", [hr.Pipeline.run, hr.Pipeline.start])
def test_an_unknown_end_is_refused_before_anything_starts(begin):
    with pytest.raises(ConfigError, match="until: expected caught-up, got 'done'") as refused:
        begin(a_pipeline(), until="done")
    assert refused.value.hint == 'until="caught-up"'


def test_what_a_transform_raises_on_no_rows_waits_for_a_batch_and_our_own_errors_do_not(monkeypatch):
    from headrace.engine import transform_check

    def raising(error):
        def preview(*_):
            raise error

        return preview

    monkeypatch.setattr(transform_check, "dry_run", raising(IndexError("no first row")))
    assert launch.check_transform(a_pipeline(), None) is None
    monkeypatch.setattr(transform_check, "dry_run", raising(ConfigError("no such column")))
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
            store.set_lease(replace(this_run(), pid=child.pid, started=time.time()))
        yield child.pid, lambda: stores.SQLite(tmp_path / "offsets.db")
        child.kill()


def starts():
    def run(store, **more):
        return a_pipeline(offsets=store).run(**more)

    def begin(store, **more):
        return a_pipeline(offsets=store).start(**more)

    def loop(store, **more):
        return hr.stream(hr.Kafka("localhost:1", topics=["clicks"]), offsets=store, **more)

    return [run, begin, loop]


@pytest.mark.parametrize("start", starts(), ids=["run", "start", "stream"])
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


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """`gc.collect` does not look through what the tests before left in memory."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


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
    "the files of the last run": (file_locations, "paths_changed", lambda pipeline: []),
    "the sources": (SourceReaders, "of", lambda spark, pipeline: SimpleNamespace(close=lambda: None)),
    "a loop": (launch, "refuse_loops", lambda pipeline: True),
    "the transform": (launch, "check_transform", lambda pipeline, inputs: None),
    "the clusters": (launch, "open_sources", launch.open_sources),
    "the engine": (engine, "DirectEngine", lambda *_, **__: object()),
    "the run": (Stopped, "run", Stopped.run),
}
"""What a start does once its observers are there, step by step."""


@pytest.fixture
def starting(monkeypatch, spark_jobs):
    """A start without Spark. `starting(step, error)` makes that step fail, `starting()` none."""
    monkeypatch.setattr(launch, "session_for", lambda *_: None)
    monkeypatch.setattr(launch, "Runner", Stopped)

    def start(step=None, error=None, **more):
        def fail(*_, **__):
            raise error

        for name, (where, attribute, works) in STEPS.items():
            monkeypatch.setattr(where, attribute, fail if name == step else works)
        sources = {name: hr.Kafka("localhost:1", topics=[name]) for name in ("clicks", "views")}
        pipeline = a_pipeline(source=sources, mirror_group="shown", transform=lambda rows: rows["clicks"])
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

    seen = []

    def stop(event):
        if not seen:  # a second signal would end this process
            os.kill(os.getpid(), signal.SIGTERM)
        seen.append(type(event))

    assert starting(step, RetriableError("nobody answers"), observer=stop) == launch.Summary(0, 0)
    assert (seen[0], seen[-1]) == (events.Retrying, events.Stopping)
    assert settled(before) == {}


def test_a_run_that_ends_leaves_no_thread_and_no_client(starting):
    before = left_of_runs()
    assert starting() == launch.Summary(0, 0)
    assert settled(before) == {}
