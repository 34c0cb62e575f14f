"""Who runs a pipeline: heartbeats while a batch lasts, a second start, and runs that cannot be looked up from here."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from unittest.mock import Mock

import psutil
import pytest

from headrace import events, sinks, stores
from headrace.core.state import AuditEntry, RunLease, State
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.runtime import heartbeat
from headrace.runtime.heartbeat import HeartbeatThread, RunPresence, liveness, rival_policy, seconds_to_wait, this_run
from headrace.types import Batch, Range
from support.simulation import A, records, simulate

SOON = 30.0
INTERVAL, LEASE_TIMEOUT = heartbeat.INTERVAL, heartbeat.LEASE_TIMEOUT
ELSEWHERE = "another-boot pid:[1]"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Heartbeats every 20 ms, lapsed after 0.3 s."""
    for name, seconds in (
        ("INTERVAL", 0.02),
        ("LEASE_TIMEOUT", 0.3),
        ("OLD_LEASE_TIMEOUT", 0.6),
        ("_POLL_INTERVAL", 0.01),
    ):
        monkeypatch.setattr(heartbeat, name, seconds)


@pytest.fixture
def store(tmp_path):
    with stores.SQLite(tmp_path / "offsets.db").open("clicks") as opened:
        yield opened


def elsewhere(**more):
    now = time.time()
    return replace(RunLease("other-host", 1, started=now - 60, beat=now, pid_space=ELSEWHERE), **more)


def until(condition):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def simulate_on_disk(tmp_path):
    """With a store that has a second handle: heartbeats come from a thread."""
    return simulate({A: 5}, store=stores.SQLite(tmp_path / "offsets.db"))


# Heartbeats


def test_a_run_sends_heartbeats_while_one_batch_lasts(tmp_path, store):
    sim, beats = simulate_on_disk(tmp_path), set()

    def seen_several(_):
        until(lambda: beats.add(store.lease().beat) or len(beats) > 3)

    sim.sink.before_write = seen_several
    sim.run(fail_fast=True)  # else each attempt at the batch would show one more
    assert sim.sink.rows == records(a=5)
    assert store.lease() is None, "a run that has ended leaves no sign"
    assert store.history() == []
    assert "headrace-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_store_without_a_second_handle_gets_heartbeats_between_batches():
    sim, beats = simulate({A: 5}), set()

    def look(_):
        if (run := sim.store.lease()) is not None:
            beats.add(run.beat)
        if len(beats) > 3:
            sim.stop("seen")

    sim.cluster.before_request = look
    sim.run(None)
    assert len(beats) > 3


@pytest.mark.parametrize(
    "kept",
    [
        stores.Cassandra("nowhere:1", keyspace="k"),
        stores.Redis("redis://nowhere:1"),
        stores.ZooKeeper("nowhere:1"),
        stores.HBase("nowhere:1"),
    ],
    ids=lambda kept: type(kept).__name__,
)
def test_a_heartbeat_handle_that_could_not_be_opened_leaves_the_connection_of_the_run_alone(kept, monkeypatch):
    connections = [name for name in ("_cluster", "_session", "_client", "_connection") if hasattr(kept, name)]
    for name in connections:
        monkeypatch.setattr(kept, name, Mock())
    handle = kept.heartbeat_handle()
    monkeypatch.setattr(handle, "open", Mock(side_effect=RetriableError("the server is away")))
    beating = HeartbeatThread(handle, "clicks", this_run(), events.ignore)
    until(lambda: handle.open.call_count > 1)
    beating.end()
    for name in connections:
        assert getattr(kept, name).mock_calls == []


def test_a_heartbeat_of_a_run_that_was_taken_over_changes_nothing(store):
    store.set_lease(successor := elsewhere())
    assert store.heartbeat(this_run()) is False
    assert store.lease() == successor


def test_a_sign_of_the_format_before_is_read():
    run = RunLease("host", 7, 1.0, 2.0)
    before = {name: value for name, value in asdict(run).items() if name != "pid_space"}
    text = json.loads(State(run=run).to_json()) | {"run": before}
    assert State.from_json(json.dumps(text)).run == run
    assert seconds_to_wait(run, 2.1) > heartbeat.LEASE_TIMEOUT, "it signed every 30 seconds"


# Who is alive


def test_a_pid_is_looked_up_only_where_it_means_something():
    here = this_run()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        run = replace(here, pid=child.pid, started=time.time())
        assert liveness(run) == "alive"
        assert liveness(replace(run, pid_space=ELSEWHERE)) == "unknown", "the same host name, another pid namespace"
        assert liveness(replace(run, started=psutil.Process(child.pid).create_time() - 60)) == "unknown"
        child.kill()
        until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
        assert liveness(run) == "dead", "killed, and nobody has asked for its exit code yet"
    assert liveness(run) == "dead"
    assert liveness(replace(run, pid_space=None)) == "unknown", "an old sign: it may be of another namespace"
    assert liveness(elsewhere(pid=os.getpid())) == "unknown"
    assert liveness(here) == "dead", "this process, but no run of its own"


@pytest.mark.parametrize(
    ("answer", "beat_ago", "found"),
    [
        (ProcessLookupError(), 0.0, "dead"),
        (PermissionError(), 0.0, "alive"),
        (PermissionError(), 60.0, "unknown"),  # the pid may have gone to somebody else
        (OSError(), 0.0, "unknown"),
        (None, 0.0, "unknown"),
    ],
    ids=repr,
)
def test_a_process_that_is_hidden_is_asked_by_a_signal(monkeypatch, answer, beat_ago, found):
    asked = Mock(side_effect=answer)
    monkeypatch.setattr(psutil, "Process", Mock(side_effect=psutil.NoSuchProcess(4242)))
    monkeypatch.setattr(os, "kill", asked)
    here = replace(this_run(), pid=4242, beat=time.time() - beat_ago)
    assert liveness(here) == found
    asked.assert_called_once_with(4242, 0)
    assert liveness(replace(here, pid_space=None)) == "unknown", "an old sign: the pid may mean another process"
    assert liveness(replace(here, pid_space=ELSEWHERE)) == "unknown"
    asked.assert_called_once()


# A second start


def test_a_second_start_says_at_once_who_runs_and_ends_with_3(tmp_path, store):
    sim, refused = simulate_on_disk(tmp_path), []

    def second(_):
        with pytest.raises(OffsetConflict) as caught:
            simulate_on_disk(tmp_path).run()
        refused.append(caught.value)

    sim.sink.before_write = second
    sim.run()
    (error,) = refused
    assert error.exit_code == 3
    assert f"pid {os.getpid()} on {os.uname().nodename}, since " in error.message
    assert "--take-over" in error.hint
    assert sim.sink.rows == records(a=5)


def test_the_question_before_spark_starts_creates_no_file(tmp_path, store):
    """A run whose store is not where the last one had it says so, by the file that is not there."""
    for elsewhere_kept in (
        stores.SQLite(tmp_path / "new" / "offsets.db"),
        stores.DuckDB(tmp_path / "new" / "o.duckdb"),
    ):
        heartbeat.refuse_second("clicks", elsewhere_kept)
        assert not (tmp_path / "new").exists()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        store.set_lease(replace(this_run(), pid=child.pid, started=time.time()))
        with pytest.raises(OffsetConflict, match=f"pid {child.pid}"):
            heartbeat.refuse_second("clicks", stores.SQLite(tmp_path / "offsets.db"))
        child.kill()


def test_take_over_begins_at_once_and_the_other_run_stores_nothing_more(tmp_path):
    sim, other = simulate_on_disk(tmp_path), simulate_on_disk(tmp_path)
    sim.sink.before_write = lambda _: other.run(rival="take-over")
    with pytest.raises(OffsetConflict):
        sim.run()
    assert other.sink.rows == records(a=5)
    assert any("taking over from pid" in event.text for event in other.events_of(events.Noted))


def test_a_run_that_was_taken_over_in_its_batch_commits_nothing_and_the_new_one_goes_on(tmp_path, store):
    """The new run replays the batch that the old one is at; the old one is finished first."""
    old, new = simulate_on_disk(tmp_path), simulate_on_disk(tmp_path)
    inside, go, ended = threading.Event(), threading.Event(), []

    def wait(_):
        inside.set()
        assert go.wait(SOON)

    def run_old():
        with pytest.raises(OffsetConflict, match="has taken over") as caught:
            old.run()
        ended.append(caught.value)

    thread = threading.Thread(target=run_old)

    def finish_old(_):
        go.set()
        thread.join(SOON)

    old.sink.before_write, new.sink.before_write = wait, finish_old
    thread.start()
    assert inside.wait(SOON)
    assert new.run(rival="take-over").batches == 1
    assert len(ended) == 1
    assert store.load().offsets == {A: 5} and store.load().pending is None and store.lease() is None


def test_what_the_old_run_committed_while_the_new_one_signed_is_not_replayed(tmp_path, store, monkeypatch):
    sim = simulate_on_disk(tmp_path)
    batch = Batch(1, (Range(A, 0, 5),), {"clicks": "id-1"})
    store.set_lease(elsewhere())
    store.begin(batch)
    acquire = RunPresence.acquire

    def late(presence, other):
        store.commit(batch)
        acquire(presence, other)

    monkeypatch.setattr(RunPresence, "acquire", late)
    assert sim.run(rival="take-over").batches == 0
    assert store.load().offsets == {A: 5}


@pytest.mark.parametrize("change", ["begin", "commit", "move"])
def test_a_handle_that_signed_changes_nothing_once_another_run_has_signed(change, tmp_path, store):
    batch = Batch(1, (Range(A, 0, 5),))
    store.set_lease(this_run())
    with stores.SQLite(tmp_path / "offsets.db").open("clicks") as other:
        other.set_lease(elsewhere())
        before = other.read()
        with pytest.raises(OffsetConflict, match="pid 1 on other-host has taken over"):
            if change == "move":
                store.set_offsets(store.load(), {A: 3}, AuditEntry(0.0, "run", "gap"))
            else:
                getattr(store, change)(batch)
        assert other.read() == before
        with stores.SQLite(tmp_path / "offsets.db").open("clicks") as tool:
            tool.commit(batch)  # one that never signed


@pytest.mark.parametrize("kind", [sinks.SQLite, sinks.DuckDB])
def test_a_sink_that_holds_the_offsets_stores_nothing_once_another_run_has_signed(kind, tmp_path, monkeypatch):
    merged = []
    monkeypatch.setattr(kind, "_merge", lambda *_: merged.append(1))
    with kind(tmp_path / "rows.db", "clicks").open("clicks") as sink:
        sink.offsets.set_lease(this_run())
        sink._store(Batch(1, (Range(A, 0, 5),)), None, None, None)
        with kind(tmp_path / "rows.db", "clicks").open("clicks") as other:
            other.offsets.set_lease(elsewhere())
        with pytest.raises(OffsetConflict, match="has taken over"):
            sink._store(Batch(2, (Range(A, 5, 9),)), None, None, None)
        assert merged == [1] and sink.offsets.load().offsets == {A: 5}


def test_standby_begins_when_the_other_run_has_ended(tmp_path, store):
    sim, other = simulate_on_disk(tmp_path), simulate_on_disk(tmp_path)
    waiting = threading.Thread(target=lambda: other.run(rival="standby"))

    def begin(_):
        waiting.start()
        until(lambda: any("standby" in event.text for event in other.events_of(events.Noted)))

    sim.sink.before_write = begin
    sim.run()
    waiting.join(SOON)
    assert sim.sink.rows == records(a=5)
    assert not waiting.is_alive() and other.sink.rows == [] and other.events_of(events.RunStarted)


@contextmanager
def opened_elsewhere(path):
    """The process that has a DuckDB file open."""
    holds = f"import duckdb, sys; c = duckdb.connect({path!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        yield child


def test_a_file_that_another_process_has_open_is_reported_before_spark_starts(tmp_path):
    path = str(tmp_path / "offsets.duckdb")
    stores.DuckDB(path).open("clicks").close()
    with opened_elsewhere(path), pytest.raises(OffsetConflict, match="another process has") as refused:
        heartbeat.refuse_second("clicks", stores.DuckDB(path))
    assert refused.value.exit_code == 3


def test_standby_waits_for_a_file_that_only_one_process_may_open(tmp_path):
    path = str(tmp_path / "offsets.duckdb")
    sim = simulate({A: 5}, store=stores.DuckDB(path))
    with opened_elsewhere(path) as child:
        with pytest.raises(OffsetConflict, match="another process has"):
            sim.run()
        sim.on_event = lambda event: child.kill() if isinstance(event, events.Retrying) else None
        assert sim.run(rival="standby").batches == 1
    assert sim.sink.rows == records(a=5)


def test_a_run_that_stood_by_ends_at_a_conflict_as_any_other(tmp_path, store):
    sim = simulate_on_disk(tmp_path)
    sim.sink.before_write = lambda _: simulate_on_disk(tmp_path).run(rival="take-over")
    with pytest.raises(OffsetConflict):
        sim.run(rival="standby")


def test_a_run_that_may_be_dead_is_taken_over_when_its_heartbeat_has_lapsed(tmp_path, store):
    store.set_lease(elsewhere())
    sim = simulate_on_disk(tmp_path)
    began = time.monotonic()
    sim.run()
    assert time.monotonic() - began >= heartbeat.LEASE_TIMEOUT * 0.9
    assert sim.sink.rows == records(a=5)
    (said,) = [event.text for event in sim.events_of(events.Noted) if "waiting up to" in event.text]
    assert "pid 1 on other-host may still be running" in said


@pytest.mark.parametrize("age", [-3600.0, 0.0, 5.0, 20.0, 599.0, 86_400.0])
def test_the_wait_for_a_run_that_may_be_dead_is_seconds_and_longer_than_a_heartbeat_takes(age, monkeypatch):
    monkeypatch.setattr(heartbeat, "INTERVAL", INTERVAL)
    monkeypatch.setattr(heartbeat, "LEASE_TIMEOUT", LEASE_TIMEOUT)
    waits = seconds_to_wait(elsewhere(beat=1_000_000.0 - age), 1_000_000.0)
    assert waits <= 15
    assert waits >= 2 * INTERVAL > 0 or age > heartbeat.MAX_CLOCK_SKEW


def test_a_run_elsewhere_that_still_beats_is_not_taken_over(tmp_path, store):
    """Whatever the clocks say: this one's heartbeats seem to be a minute old."""
    store.set_lease(elsewhere(beat=time.time() - 60))
    ended = threading.Event()

    def beats():
        with stores.SQLite(tmp_path / "offsets.db").open("clicks") as own:
            while not ended.wait(0.005):
                own.heartbeat(replace(own.lease(), beat=time.time() - 60))

    beating = threading.Thread(target=beats)
    beating.start()
    try:
        with pytest.raises(OffsetConflict, match="pid 1 on other-host"):
            simulate_on_disk(tmp_path).run()
    finally:
        ended.set()
        beating.join()


def test_a_run_of_this_machine_whose_process_is_gone_is_taken_over_at_once(store, monkeypatch):
    monkeypatch.setattr(heartbeat, "LEASE_TIMEOUT", 1000.0)
    store.set_lease(replace(this_run(), pid=2**22 - 3))
    assert RunPresence("clicks", events.ignore).admit(store)


def test_a_stop_ends_the_wait_for_a_heartbeat(store, monkeypatch):
    monkeypatch.setattr(heartbeat, "LEASE_TIMEOUT", 1000.0)
    store.set_lease(elsewhere())
    assert not RunPresence("clicks", events.ignore, wait=lambda seconds: True).admit(store)


def test_of_two_starts_at_once_one_signs_and_the_other_is_refused(store):
    one, two = RunPresence("clicks", events.ignore), RunPresence("clicks", events.ignore)
    assert one.admit(store) and two.admit(store)
    one.acquire(store)
    try:
        with pytest.raises(OffsetConflict, match="is running already"):
            two.acquire(store)
        assert store.lease().is_same_run(one.run)
    finally:
        one.close()
        two.close()


def test_a_run_that_retries_stays_the_run_of_its_pipeline(tmp_path, store):
    sim = simulate_on_disk(tmp_path)
    signs = []
    failing = [RetriableError("not now")]
    sim.sink.before_write = lambda _: (_ for _ in ()).throw(failing.pop()) if failing else None
    sim.on_event = lambda event: signs.append(store.lease()) if isinstance(event, events.Retrying) else None
    sim.run()
    assert [run is not None for run in signs] == [True]


def test_take_over_and_standby_exclude_each_other():
    with pytest.raises(ConfigError):
        rival_policy(take_over=True, standby=True)
    assert [rival_policy(take_over=one, standby=two) for one, two in ((0, 0), (1, 0), (0, 1))] == [
        "stop",
        "take-over",
        "standby",
    ]
