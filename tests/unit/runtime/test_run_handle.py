"""A run as a value to hold: its status, its end, and who may stop it; with a cluster and an engine in memory."""

import contextvars
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta

import pytest

import headrace as hr
from headrace import events
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.runtime.run_handle import Run, RunStatus
from headrace.runtime.runner import Summary
from headrace.support.polling import wait_until
from headrace.testing.fakes import fail_first
from headrace.types import Batch, Range, TopicPartition
from support.simulation import A, records, simulate

SOON = 20.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=1)
BATCH = Batch(1, (Range(TopicPartition("clicks", 0), 0, 5),))


class Jobs:
    """Stands for Spark: a batch that is in `run` lasts until it is cancelled or let through."""

    def __init__(self):
        self.begun, self.through, self.cancelled = threading.Event(), threading.Event(), threading.Event()
        self.cancels = 0

    def run(self, _):
        self.begun.set()
        assert self.through.wait(SOON)
        if self.cancelled.is_set():
            raise RuntimeError("the job was cancelled")

    def cancel(self, over):
        self.cancels += 1
        self.cancelled.set()
        self.through.set()
        assert over.wait(SOON)


def begin(sim, jobs=None, *, observer=events.ignore, until=None, fail_fast=False):
    jobs = jobs or Jobs()

    def work(stop, observe):
        sim.on_event = observe
        return sim.run(until, stop=stop, fail_fast=fail_fast)

    return Run("clicks", work, cancel=jobs.cancel, observer=observer)


def threads():
    """Those of runs. Test servers and a JVM that other tests started have some as well."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]
    return {name for name in names if not name.startswith(("headrace-dev", "headrace-jvm"))}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert threads() == set()


def ended_with(work):
    return Run("clicks", work, cancel=lambda over: None)


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        ({}, events.RunStarted("at-least-once", (), {}), {"state": "running", "since": LATER}),
        ({"state": "stopping"}, events.RunStarted("at-least-once", (), {}), {"state": "stopping"}),
        ({"state": "running"}, events.Stopping("stop()"), {"state": "stopping", "since": LATER}),
        ({}, events.BatchStarted(BATCH, replay=False), {"batch": BATCH}),
        (
            {"batch": BATCH, "batches": 2, "records": 10, "rows": 8, "error": ValueError},
            events.BatchDone(BATCH, 1.0, 0, records=4, rows=3),
            {"batches": 3, "records": 14, "rows": 11},
        ),
        ({"rows": 8}, events.BatchDone(BATCH, 1.0, 0), {"batches": 1, "records": 5, "rows": None}),
        ({"rows": None}, events.BatchDone(BATCH, 1.0, 0, 5, 5), {"batches": 1, "records": 5, "rows": None}),
        ({"batch": BATCH, "error": ValueError}, events.BatchSkipped(BATCH), {}),
        ({"error": ValueError}, events.CaughtUp(3), {}),
        ({"batch": BATCH}, events.Retrying(ValueError, 1, 0.5), {"error": ValueError}),
        ({"batch": BATCH}, events.Noted("a note"), {"batch": BATCH}),
    ],
)
def test_an_event_changes_the_status_and_nothing_else_of_it(before, event, after):
    start = {"state": "starting", "since": NOON}
    assert RunStatus(**{**start, **before}).after(event, LATER) == RunStatus(
        **{**start, **{key: value for key, value in before.items() if key in ("state", "rows")}, **after}
    )


def test_a_status_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        RunStatus("running", NOON).batches = 3


def test_a_run_with_an_end_ends_by_itself_and_says_what_it_did():
    sim = simulate({A: 25}, limits=hr.Limits(max_records=10))
    run = begin(sim, until="caught-up")
    assert run.wait(SOON) == run.wait() == Summary(3, 25)
    status = run.status
    assert (status.state, status.batch, status.batches, status.records, status.rows, status.error) == (
        "stopped",
        None,
        3,
        25,
        None,
        None,
    )
    assert sim.sink.rows == records(a=25)
    assert repr(run) == f"<Run clicks: stopped since {status.since:%Y-%m-%d %H:%M:%S} UTC>"


def test_the_batch_in_flight_is_shown_and_a_stop_lets_it_finish():
    sim, jobs = simulate({A: 25}, limits=hr.Limits(max_records=10)), Jobs()
    sim.sink.before_write = jobs.run
    with begin(sim, jobs) as run:
        assert jobs.begun.wait(SOON)
        assert (run.status.state, run.status.batch.id, run.status.batches) == ("running", 1, 0)
        assert run.wait(0) is None
        run.stop()
        assert (run.status.state, run.status.batch.id) == ("stopping", 1)
        assert run.wait(0.01) is None
        jobs.through.set()
        assert run.wait(SOON) == Summary(1, 10)
    assert jobs.cancels == 0
    assert sim.progress.pending is None
    assert run.status.state == "stopped"


def test_leaving_the_block_stops_the_run_and_waits_for_its_end():
    sim = simulate({A: 5})
    with begin(sim) as run:
        assert threads() == {"headrace-run-clicks"}
    assert run.status.state == "stopped"
    assert run.wait(0) is not None


def test_without_drain_the_batch_is_cut_off_and_the_next_run_repeats_it():
    sim, jobs = simulate({A: 25}, limits=hr.Limits(max_records=10)), Jobs()
    sim.sink.before_write = jobs.run
    run = begin(sim, jobs, fail_fast=True)
    assert jobs.begun.wait(SOON)
    run.stop(drain=False)
    assert run.wait(SOON) == Summary(0, 0, 0)
    assert (run.status.state, run.status.error, run.status.batch) == ("stopped", None, None)
    assert (jobs.cancels, sim.events_of(events.Retrying)) == (1, [])
    assert sim.progress.pending.id == 1
    sim.sink.before_write = None
    assert begin(sim, until="caught-up").wait(SOON).records == 25
    assert sim.sink.rows == records(a=25)


def test_a_batch_that_outlasts_the_drain_is_cut_off_and_that_is_an_error():
    sim, jobs = simulate({A: 25}), Jobs()
    sim.sink.before_write = jobs.run
    with pytest.raises(HeadraceError, match="was not finished 0 s after the stop") as raised, begin(sim, jobs) as run:
        assert jobs.begun.wait(SOON)
        run.stop(drain="1ms")
    assert raised.value.hint == "--drain SECONDS, or run.stop(drain=…), gives it more time"
    assert (run.status.state, run.status.error) == ("failed", raised.value)
    assert sim.progress.pending is not None


def test_a_later_stop_may_shorten_the_drain_and_not_lengthen_it():
    sim, jobs = simulate({A: 25}), Jobs()
    sim.sink.before_write = jobs.run
    run = begin(sim, jobs)
    assert jobs.begun.wait(SOON)
    for drain in ("1h", "2h", True, False, "1h"):
        run.stop(drain=drain)
    assert run.wait(SOON) is not None
    assert jobs.cancels == 1


def test_a_run_that_is_cut_off_before_its_first_batch_has_done_nothing():
    jobs = Jobs()
    run = Run("clicks", lambda stop, observe: jobs.run(None), cancel=jobs.cancel)
    assert jobs.begun.wait(SOON)
    run.stop(drain=False)
    assert run.wait(SOON) == Summary(0, 0)


@pytest.mark.parametrize("drain", ["soon", -1, "0s", float("inf"), None])
def test_a_drain_that_is_no_duration_is_refused(drain):
    sim = simulate({A: 5})
    with begin(sim) as run:
        if drain is None:
            run.stop(drain=0)
            return
        with pytest.raises(ConfigError, match="drain: expected a duration above 0") as refused:
            run.stop(drain=drain)
        assert refused.value.hint == 'drain="30s", or drain=False to cancel the batch'
        assert run.status.state != "stopping"


def test_a_failure_is_raised_by_wait_each_time_and_by_the_block():
    sim = simulate({A: 5})
    sim.sink.before_write = fail_first(10**9, ConfigError("no such column"))
    with pytest.raises(ConfigError, match="no such column"), begin(sim) as run:
        assert wait_until(lambda: run.status.state == "failed", SOON, 0.005)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no such column"):
            run.wait(SOON)
    assert (run.status.state, str(run.status.error)) == ("failed", "no such column")


def test_an_error_of_the_block_is_not_replaced_by_that_of_the_run():
    def work(stop, observe):
        assert stop.requested.wait(SOON)
        raise ValueError("of the run")

    with pytest.raises(KeyError), ended_with(work) as run:
        raise KeyError("of the block")
    assert str(run.status.error) == "of the run"


def test_what_is_no_exception_ends_the_run_and_is_raised_by_wait():
    def work(stop, observe):
        raise SystemExit(7)

    run = ended_with(work)
    with pytest.raises(SystemExit):
        run.wait(SOON)
    assert run.status.state == "failed"


def test_an_error_that_is_being_repeated_is_in_the_status_until_a_batch_is_done():
    sim = simulate({A: 5})
    sim.sink.before_write = fail_first(2, RetriableError("the sink is away"))
    seen, handle = [], queue.SimpleQueue()

    def observer(event):
        handle.put(run := handle.get(timeout=SOON))
        seen.append((type(event), run.status))

    run = begin(sim, until="caught-up", observer=observer)
    handle.put(run)
    assert run.wait(SOON) == Summary(1, 5)
    errors = {kind: str(status.error) for kind, status in seen}
    assert errors[events.Retrying] == "the sink is away"
    assert errors[events.BatchDone] == "None"


def test_several_threads_may_stop_and_wait_and_the_stop_is_reported_once():
    sim, seen, done = simulate({A: 5}), [], []
    run = begin(sim, observer=seen.append)

    def stop():
        run.stop()
        done.append(run.wait(SOON))

    stopping = [threading.Thread(target=stop) for _ in range(8)]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join(SOON)
    assert done == [run.wait()] * 8
    assert seen.count(events.Stopping("stop()")) == 1


def test_a_signal_that_another_thread_receives_reaches_the_handler_while_the_main_thread_waits():
    jobs = Jobs()
    sim = simulate({A: 25})
    sim.sink.before_write = jobs.run
    run = begin(sim, jobs)

    handled, in_time = threading.Event(), []

    def interrupt():
        time.sleep(0.3)  # no event tells that the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        in_time.append(handled.wait(SOON / 4))
        run.stop(drain=False)

    before = signal.signal(signal.SIGTERM, lambda *_: handled.set())
    try:
        sender = threading.Thread(target=interrupt)
        sender.start()
        run.wait()
        sender.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert in_time == [True]


def test_an_observer_may_stop_the_run_and_not_wait_for_itself():
    sim, refused, handle = simulate({A: 5}), [], queue.SimpleQueue()

    def observer(event):
        if isinstance(event, events.CaughtUp):
            run = handle.get(timeout=SOON)
            run.stop(reason="caught up")
            with pytest.raises(RuntimeError, match=r"run.stop\(\) returns at once") as raised:
                run.wait()
            refused.append(raised.value)

    run = begin(sim, observer=observer)
    handle.put(run)
    assert run.wait(SOON) == Summary(1, 5)
    assert len(refused) == 1


def test_a_stop_after_the_end_changes_nothing():
    seen = []
    run = begin(simulate({A: 5}), until="caught-up", observer=seen.append)
    run.wait(SOON)
    before = run.status, list(seen)
    run.stop(drain=False)
    assert (run.status, seen) == before


def test_events_come_one_at_a_time_from_whichever_thread():
    inside, overlaps = threading.Lock(), []

    def observer(event):
        overlaps.append(not inside.acquire(blocking=False))
        inside.release()

    def work(stop, observe):
        others = [threading.Thread(target=lambda: [observe(events.Noted("x")) for _ in range(200)]) for _ in range(4)]
        for other in others:
            other.start()
        for other in others:
            other.join(SOON)
        return Summary(0, 0)

    Run("clicks", work, cancel=lambda over: None, observer=observer).wait(SOON)
    assert len(overlaps) == 800
    assert not any(overlaps)


def test_the_run_has_the_context_of_its_caller():
    trace = contextvars.ContextVar("trace")
    trace.set("of the caller")
    seen = []

    def work(stop, observe):
        seen.append(trace.get())
        trace.set("of the run")
        return Summary(0, 0)

    ended_with(work).wait(SOON)
    assert (seen, trace.get()) == (["of the caller"], "of the caller")


def test_a_signal_handler_that_raises_in_wait_leaves_the_run_alone():
    class TimedOut(Exception):
        """As a task of Airflow is ended."""

    def handler(*_):
        raise TimedOut

    before = signal.signal(signal.SIGALRM, handler)
    sim = simulate({A: 5})
    try:
        run = begin(sim)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimedOut):
            run.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert run.wait(0) is None
    run.stop()
    assert run.wait(SOON) == Summary(1, 5)


def test_a_process_that_ends_lets_the_batch_in_flight_finish(tmp_path):
    script = """
        import threading
        from headrace.runtime.run_handle import Run
        from headrace.runtime.runner import Summary

        began = threading.Event()

        def work(stop, observe):
            began.set()
            assert stop.requested.wait(20)
            threading.Event().wait(0.2)
            print("finished", flush=True)
            return Summary(1, 1)

        Run("clicks", work, cancel=lambda over: None, observer=print)
        began.wait(20)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        "Stopping(reason='the process ends')\nfinished\n",
        "",
    )
