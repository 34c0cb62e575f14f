"""The fakes that are shipped: each behaves like what it stands for."""

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

import headrace as hr
from headrace import events
from headrace.errors import OffsetConflict, RetriableError
from headrace.kafka.cluster import Cluster
from headrace.kafka.subscription import Partitions, Pattern, Topics
from headrace.runtime.runner import Engine
from headrace.runtime.source_states import ClusterMetadata
from headrace.testing import fakes
from headrace.testing.fakes import (
    FakeClock,
    FakeCluster,
    FakeEngine,
    FakeIdempotentSink,
    FakeNumberedSink,
    FakeSink,
    FakeStore,
    FakeTransactionalSink,
    fail_first,
    record_ids,
)
from headrace.testing.stores import OffsetStoreContract
from headrace.types import Batch, Progress, Range, TopicPartition
from support.project import ROOT
from support.simulation import A, B, records, simulate

BATCH = Batch(1, (Range(A, 0, 2), Range(B, 5, 6)))
PAGE = ROOT / "docs" / "testing.md"


class TestFakeStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def shared(self):
        self._shared = {}

    def new_store(self):
        return FakeStore(self._shared)


# the cluster


def test_a_topic_log_has_the_offsets_of_its_partitions():
    cluster = FakeCluster({A: 10, B: 4}, {A: 3})
    (log,) = cluster.logs(Topics(["clicks"])).values()
    assert (log.topic_id, log.beginnings, log.ends, log.left_out) == ("id-1", {A: 3, B: 0}, {A: 10, B: 4}, ())


def test_a_subscription_chooses_topics_and_partitions():
    views = TopicPartition("views", 0)
    cluster = FakeCluster({A: 10, B: 4, views: 1})
    assert set(cluster.logs(Pattern("v.*"))) == {"views"}
    (log,) = cluster.logs(Partitions({"clicks": [1]})).values()
    assert (log.ends, log.left_out) == ({B: 4}, (A,))


def test_a_topic_that_is_not_there_has_no_partitions():
    cluster = FakeCluster({A: 10})
    assert cluster.logs(Topics(["taps"]))["taps"].ends == {}
    assert cluster.existing_logs(["taps", "clicks"]).keys() == {"clicks"}
    assert cluster.ids(["taps"]) == {}


def test_records_are_produced_and_deleted():
    cluster = FakeCluster({A: 10})
    cluster.produce(A, 5)
    cluster.produce(B)
    cluster.delete_records(A, before=12)
    assert cluster.ends([A, B]) == {A: 15, B: 1}
    assert cluster.logs(Topics(["clicks"]))["clicks"].beginnings == {A: 12, B: 0}


def test_a_recreated_topic_has_another_id_each_time_and_none_of_its_old_offsets():
    cluster = FakeCluster({A: 10, B: 5}, {A: 3})
    ids = [cluster.ids(["clicks"])["clicks"]]
    for _ in range(2):
        cluster.recreate_topic("clicks", {0: 2})
        ids.append(cluster.ids(["clicks"])["clicks"])
    assert len(set(ids)) == 3
    log = cluster.logs(Topics(["clicks"]))["clicks"]
    assert (log.beginnings, log.ends) == ({A: 0}, {A: 2})


def test_offsets_by_time_are_those_of_partitions_that_have_a_record_since():
    cluster = FakeCluster({A: 10, B: 5}, offsets_by_time={A: 7})
    assert cluster.at_time([A, B], datetime(2026, 1, 1, tzinfo=UTC)) == {A: 7}
    assert cluster.lookup_times([{A: 5.0, B: 5.0}], 1.0) == [{A: (7, 5.0)}]


def test_each_request_is_counted_and_may_fail():
    cluster = FakeCluster({A: 10}, before_request=fail_first(1, RetriableError("Kafka does not answer")))
    with pytest.raises(RetriableError):
        cluster.ends([A])
    cluster.ends([A])
    assert cluster.requests == 1


@pytest.mark.parametrize(
    ("fake", "real"), [(FakeCluster, ClusterMetadata), (FakeCluster, Cluster), (FakeEngine, Engine)]
)
def test_a_fake_has_the_methods_that_the_loop_calls(fake, real):
    called = {name for name in vars(ClusterMetadata if fake is FakeCluster else Engine) if not name.startswith("_")}
    assert len(called) > 2
    assert all(callable(getattr(fake, name)) and callable(getattr(real, name)) for name in called)


# sinks


def test_a_plain_sink_stores_a_repeated_batch_twice():
    sink = FakeSink()
    for _ in range(2):
        sink.write(BATCH, record_ids(BATCH))
    assert sink.rows == [(A, 0), (A, 1), (B, 5)] * 2


@pytest.mark.parametrize("sink", [FakeIdempotentSink(), FakeNumberedSink()], ids=lambda sink: type(sink).__name__)
def test_an_idempotent_sink_stores_a_repeated_batch_once(sink):
    for _ in range(2):
        sink.write(BATCH, record_ids(BATCH))
    assert sink.rows == record_ids(BATCH)
    assert sink.batches == [BATCH]


def test_a_numbered_sink_refuses_an_older_batch():
    sink = FakeNumberedSink()
    sink.write(replace(BATCH, id=4), [])
    assert sink.last_batch() == 4
    with pytest.raises(OffsetConflict):
        sink.write(BATCH, [])


def test_a_transactional_sink_stores_rows_and_offsets_or_neither():
    sink = FakeTransactionalSink().open("clicks")
    sink.write(BATCH, record_ids(BATCH))
    assert sink.offsets.load().offsets == {A: 2, B: 6}
    with pytest.raises(OffsetConflict):
        sink.write(replace(BATCH, id=2), record_ids(BATCH))
    assert sink.rows == record_ids(BATCH)


def test_a_transactional_sink_runs_without_another_store():
    sim = simulate({A: 25}, guarantee="exactly-once", sink=FakeTransactionalSink(), limits=hr.Limits(max_records=10))
    fail = fail_first(1, RetriableError("away"))
    sim.sink.before_write = lambda batch: fail() if batch.id == 2 else None
    sim.run()
    assert sim.sink.rows == records(a=25)
    assert sim.progress.offsets == {A: 25}


# the store


def test_a_store_counts_its_calls_and_may_fail_at_each():
    store = FakeStore(before_call=lambda name, batch: fail() if name == "begin" else None)
    fail = fail_first(1, RetriableError("the store does not answer"))
    with store.open("clicks"), pytest.raises(RetriableError):
        store.begin(BATCH)
    assert store.calls == ["open", "begin", "close"]
    assert store.open("clicks").load() == Progress()


def test_a_backup_of_a_store_can_be_restored():
    sim = simulate({A: 5})
    backup = dict(sim.store.shared)
    sim.run()
    sim.store.shared.clear()
    sim.store.shared.update(backup)
    assert sim.progress == Progress()


# the simulation


def test_rows_are_made_by_a_function_of_ones_own():
    sink = FakeSink()
    pipeline = replace(simulate({}).pipeline, sink=sink)
    fakes.Simulation(pipeline, {A: 3}, rows=lambda batch: [f"row {offset}" for _, offset in record_ids(batch)]).run()
    assert sink.rows == ["row 0", "row 1", "row 2"]


def test_a_restored_pending_batch_is_finished_first():
    pending = Batch(3, (Range(A, 5, 9),), {"clicks": "id-1"})
    progress = Progress({A: 5}, pending, {"clicks": "id-1"}, last_batch=2)
    sim = simulate({A: 20}, progress=progress)
    sim.run()
    assert sim.sink.batches[0] == pending


def test_a_stop_ends_the_run_that_is_going_on_and_not_the_next_one():
    sim = simulate({A: 10})
    sim.stop_on(events.BatchStarted)
    assert sim.run(None).records == 10
    sim.on_event = None
    sim.cluster.produce(A, 5)
    assert sim.run().records == 5


def test_a_run_inside_a_run_has_a_stop_of_its_own():
    outer = simulate({A: 20}, guarantee="exactly-once", sink=FakeIdempotentSink(), limits=hr.Limits(max_records=10))

    def run_again(batch):
        outer.sink.before_write = lambda batch: outer.stop()
        outer.run(rival="take-over")

    outer.sink.before_write = run_again
    with pytest.raises(OffsetConflict):
        outer.run()
    assert outer.sink.rows == records(a=10)
    assert [event.batches for event in outer.events_of(events.RunStopped)] == [1, 0]


def test_a_simulation_in_a_thread_is_stopped_from_another():
    sim = simulate({A: 10})
    caught_up = threading.Event()
    sim.on_event = lambda event: caught_up.set() if isinstance(event, events.CaughtUp) else None
    thread = threading.Thread(target=sim.run, args=(None,))
    thread.start()
    assert caught_up.wait(20)
    sim.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_a_fake_clock_advances_on_request():
    clock = FakeClock(5)
    clock.advance(2.5)
    assert clock() == 7.5


def test_fail_first_fails_so_many_times():
    hook, failures = fail_first(2, ValueError("no")), 0
    for _ in range(5):
        try:
            hook("any", "arguments")
        except ValueError:
            failures += 1
    assert failures == 2


# the page

(SAMPLE,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", SAMPLE, flags=re.MULTILINE))
def test_the_sample_of_the_page_runs(name):
    page = {}
    exec(compile(SAMPLE, str(PAGE), "exec"), page)
    page[name]()


def test_the_page_names_every_fake():
    shipped = {name for name, value in vars(fakes).items() if name.startswith("Fake") and isinstance(value, type)}
    assert shipped == set(re.findall(r"`(Fake\w+)`", PAGE.read_text()))
