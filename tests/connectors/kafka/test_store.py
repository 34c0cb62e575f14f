"""Offsets in a consumer group of a real broker: what others see of it, and what happens when things go wrong."""

import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import headrace as hr
from headrace import dev, sinks, stores
from headrace.core.delivery import WriteResult
from headrace.core.state import AuditEntry, RunLease
from headrace.errors import ConfigError, DataLoss, OffsetConflict, RetriableError
from headrace.kafka import client
from headrace.kafka import offset_group as group_module
from headrace.runtime.launch import open_sources
from headrace.runtime.runner import Runner
from headrace.types import Batch, Progress, Range, TopicPartition
from support.interleaving import Died, die, meanwhile


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))


@pytest.fixture
def name():
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def admin(kafka):
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def new(kafka, name):
    """Another handle on the same group."""
    opened = []

    def make():
        opened.append(opened_patiently(kafka.bootstrap, name))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def opened_patiently(bootstrap, name, **arguments):
    """A new broker's coordinators take a while."""
    store = stores.Kafka(bootstrap, **arguments).open(name)
    return eventually(lambda: (store.load(), store)[1])


def eventually(question, seconds=90.0):
    """The first true answer. Errors that may pass are no answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if answer := question():
                return answer
        except RetriableError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline
        time.sleep(0.1)


def batch(number, *ranges, topic_id="id-1"):
    return Batch(number, tuple(Range(*r) for r in ranges), {at.topic: topic_id for at, _, _ in ranges})


def real_id(bootstrap, topic):
    """Kafka's own id of the topic, which a store asks for to tell a forgotten offset from a deleted topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return str(described.topic_id)


def partitions(topic, count=2):
    """The partitions of a topic that was just made; a busy broker knows it a moment later."""

    def known():
        try:
            return real_id(topic.bootstrap, topic.name)
        except KafkaException:
            return None

    eventually(known)
    return [TopicPartition(topic.name, number) for number in range(count)]


def listed(admin, name):
    """The group as everybody else sees it."""
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(30)
    return {TopicPartition(p.topic, p.partition): p for p in found.topic_partitions}


def set_by_hand(admin, name, at, offset):
    def done():
        positions = [Position(at.topic, at.partition, offset)]
        answer = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, positions)])[name].result(30)
        return all(position.error is None for position in answer.topic_partitions)

    eventually(done)  # the coordinator of a new broker is not there at once


def test_kafka_tools_see_the_committed_offsets(new, admin, name, topic):
    a, b = partitions(topic())
    store = new()
    store.commit(batch(1, (a, 0, 10), (b, 5, 7)))
    store.begin(batch(2, (a, 10, 20)))
    seen = eventually(lambda: listed(admin, name))
    assert {at: position.offset for at, position in seen.items()} == {a: 10, b: 7}


def test_an_offset_that_another_tool_committed_is_taken_over(new, admin, name, topic):
    a, b = partitions(topic())
    set_by_hand(admin, name, a, 42)
    store = new()
    progress = store.load()
    assert progress == Progress({a: 42}, epoch=progress.epoch)
    store.commit(replace(batch(1, (a, 42, 50), (b, 0, 3)), epoch=progress.epoch))
    set_by_hand(admin, name, a, 45)
    assert store.load().offsets == {a: 45, b: 3}
    assert store.load().last_batch == 1


def test_an_offset_set_under_a_pending_batch_gives_the_batch_up(new, admin, name, topic):
    a, b = partitions(topic())
    store = new()
    running = batch(2, (a, 10, 20), (b, 10, 20))
    store.commit(batch(1, (a, 0, 10), (b, 0, 10)))
    store.begin(running)
    set_by_hand(admin, name, a, 3)
    with pytest.raises(OffsetConflict):
        store.commit(running)
    assert store.load().pending is None
    assert store.load().offsets == {a: 3, b: 10}


def test_a_zombie_is_fenced(new, topic):
    (a, _) = partitions(topic())
    old = new()
    old.commit(batch(1, (a, 0, 10)))
    state, version = old.read()
    successor = new()
    assert old.swap(version, state, state.committed(batch(2, (a, 10, 20)))) is True  # nobody moved: it gets on
    state, version = old.read()
    successor.load()
    successor.commit(batch(3, (a, 20, 30)))
    assert old.swap(version, state, state.committed(batch(3, (a, 20, 25)))) is False
    with pytest.raises(OffsetConflict):
        old.commit(batch(3, (a, 20, 25)))
    assert successor.load().offsets == {a: 30}


def test_a_transaction_left_open_by_a_dead_run_is_settled_by_the_next(new, kafka, name, topic):
    (a, _) = partitions(topic())
    store = new()
    store.commit(batch(1, (a, 0, 10)))
    producer = store._group._producer
    producer.begin_transaction()
    producer.send_offsets_to_transaction([Position(a.topic, a.partition, 99)], store._group._group_metadata, 10)
    began = time.monotonic()
    assert new().load().offsets == {a: 10}
    assert time.monotonic() - began < 10
    with pytest.raises(OffsetConflict):
        store.commit(batch(2, (a, 99, 100)))


def test_reading_waits_for_no_dead_run(new, kafka, name, topic):
    (a, _) = partitions(topic())
    store, reader = new(), new()
    store.commit(batch(1, (a, 0, 10)))
    producer = store._group._producer
    producer.begin_transaction()
    producer.send_offsets_to_transaction([Position(a.topic, a.partition, 99)], store._group._group_metadata, 10)
    reader._group.release()
    assert reader.read()[0].progress.offsets == {a: 10}


def test_ending_a_lost_transaction_through_a_neighbour_changes_nothing_else(new, topic):
    (a, _) = partitions(topic())
    store = new()
    store.commit(batch(1, (a, 0, 10)))
    state, _ = store.read()
    store._group._finish_lost_commit(store._group._producer)
    assert store.read()[0] == state
    store.commit(batch(2, (a, 10, 20)))
    assert new().load().offsets == {a: 20}


def test_groups_are_kept_where_java_says():
    assert group_module._java_hash("abc") == 96354
    assert group_module._java_hash("polygenelubricants") == 0  # the one whose absolute value Java cannot say
    assert group_module._java_hash("headrace-offsets") == abs(java_hash("headrace-offsets"))


def java_hash(text):
    value = sum(ord(c) * 31 ** (len(text) - 1 - i) for i, c in enumerate(text)) % 2**32
    return value - 2**32 if value >= 2**31 else value


def test_reading_fences_nobody(new, kafka, name, topic):
    (a, _) = partitions(topic())
    store = new()
    store.commit(batch(1, (a, 0, 10)))
    token = store._group.token
    with stores.Kafka(kafka.bootstrap).open(name) as reader:
        assert reader.read()[0].progress.offsets == {a: 10}
    state, version = store.read()
    assert version.token is token
    assert store.swap(version, state, state.committed(batch(2, (a, 10, 11))))


def test_a_first_commit_is_seen_by_the_next_reader(kafka, topic):
    (a, _) = partitions(topic())
    for number in range(10):
        name = f"first-{uuid.uuid4().hex[:12]}"
        store, reader = opened_patiently(kafka.bootstrap, name), stores.Kafka(kafka.bootstrap).open(name)
        begun = batch(1, (a, number, 100))
        store.begin(begun)
        assert reader.read()[0].progress.pending == begun
        store.close()
        reader.close()


def test_a_thousand_partitions_stay_far_below_the_limit_of_metadata(new, admin, name, topic):
    many = partitions(topic(1000), 1000)
    store = new()
    topic_id = "J8CTyRJ5SXWk4i4Wk3HvGQ"
    store.commit(batch(2**40, *((at, 0, 2**50) for at in many), topic_id=topic_id))
    store.set_lease(RunLease("a-rather-long-host-name." * 10, 2**31, 1.7e9, 1.7e9))
    store.begin(batch(2**40 + 1, *((at, 2**50, 2**51) for at in many), topic_id=topic_id))
    sizes = [len(position.metadata) for position in listed(admin, name).values()]
    assert len(sizes) == 1000
    assert max(sizes) < 700, max(sizes)
    assert sorted(sizes)[-2] < 250


def test_all_partitions_of_a_read_belong_together_while_a_run_moves_them(new, kafka, name, topic):
    many = partitions(topic(200), 200)
    store, stop = new(), threading.Event()
    store.commit(batch(0, *((at, 0, 0) for at in many)))
    seen = set()

    def watch():
        with stores.Kafka(kafka.bootstrap).open(name) as reader:
            while not stop.is_set():
                progress = reader.read()[0].progress
                seen.add((frozenset(progress.offsets.values()), progress.last_batch, len(progress.offsets)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(30):
        store.commit(batch(number + 1, *((at, number, number + 1) for at in many)))
    stop.set()
    watcher.join()
    assert all(offsets == {last} and count == 200 for offsets, last, count in seen), seen
    assert len(seen) > 1


def test_more_partitions_than_one_request_takes_move_together(new, topic, monkeypatch):
    monkeypatch.setattr(client, "_PARTITIONS_PER_REQUEST", 3)
    many = partitions(topic(10), 10)
    new().commit(batch(1, *((at, 0, 5) for at in many)))
    assert new().load().offsets == dict.fromkeys(many, 5)


def test_a_sign_touches_one_partition_and_all_of_them_each_hour(new, admin, name, topic):
    many = partitions(topic(5), 5)
    store, now = new(), 1000.0
    store._now = lambda: now
    store.commit(batch(1, *((at, 0, 5) for at in many)))

    def touched(beat):
        before = listed(admin, name)
        store.set_lease(RunLease("host", 1, 0.0, beat))
        assert store.read()[0].run == RunLease("host", 1, 0.0, beat)
        after = listed(admin, name)
        return sum(before[at].metadata != after[at].metadata for at in many)

    assert touched(1.0) == 1
    now += 3599
    assert touched(2.0) == 1
    now += 2
    assert touched(3.0) == 5
    assert touched(4.0) == 1


def test_a_group_with_live_consumers_is_refused(kafka, name, topic):
    made = topic()
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": name, "session.timeout.ms": 6000})
    consumer.subscribe([made.name])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        consumer.poll(0.2)
        assert time.monotonic() < deadline
    with stores.Kafka(kafka.bootstrap).open(name) as store, pytest.raises(ConfigError, match="live consumers"):
        store.load()
    consumer.close()


def test_a_topic_that_is_not_there_is_reported_at_once(new):
    store, began = new(), time.monotonic()
    with pytest.raises(ConfigError, match="no-such-topic"):
        store.commit(batch(1, (TopicPartition("no-such-topic", 0), 0, 1)))
    assert time.monotonic() - began < 8


def test_a_broker_that_is_not_there_is_reported_within_seconds(name):
    began = time.monotonic()
    with pytest.raises(RetriableError, match="does not answer"):
        stores.Kafka("127.0.0.1:1").open(name).load()
    assert time.monotonic() - began < 15


def test_options_that_cannot_be_are_reported_and_no_secret_with_them(name):
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "NO-SUCH", "sasl.password": "geheim"}
    store = stores.Kafka("127.0.0.1:1", options=options)
    with pytest.raises(ConfigError) as error:
        store.open(name)
    assert "geheim" not in f"{error.value} {error.value.hint} {store!r}"


def test_the_advice_carries_the_figure_of_the_broker(kafka):
    (warning,) = stores.Kafka(kafka.bootstrap).durability_warnings("clicks")
    assert "10,080 minutes (7 days)" in warning


def test_a_group_that_is_gone_stops_the_pipeline_until_the_marker_is_removed(new, admin, name, topic):
    a, b = partitions(topic())
    store = new()
    topic_id = real_id(store.bootstrap, a.topic)
    store.commit(batch(1, (a, 0, 10), (b, 0, 10), topic_id=topic_id))
    store.append_audit(AuditEntry(1.0, "somebody", "note"))
    admin.delete_consumer_groups([name])[name].result(30)
    with pytest.raises(DataLoss, match=name) as error:
        store.commit(batch(2, (a, 10, 20)))
    with pytest.raises(DataLoss):
        stores.Kafka(store.bootstrap).open(name).load()
    assert str(store._files.marker) in error.value.hint
    store._files.marker.unlink()
    later = new()
    assert later.load() == Progress()
    assert list(later.history()) == [AuditEntry(1.0, "somebody", "note")]


def test_another_cluster_is_another_group(new, name, topic, monkeypatch):
    (a, _) = partitions(topic())
    new().commit(batch(1, (a, 0, 10)))
    monkeypatch.setattr(group_module.FencedOffsetGroup, "cluster_id", lambda _: "another")
    monkeypatch.setattr(group_module.FencedOffsetGroup, "fetch", lambda *_: {})
    assert new().load() == Progress()


def test_a_topic_deleted_and_created_again_is_recognised_by_its_old_id(new, admin, name, topic):
    made, other = topic(), topic()
    a, b = partitions(made)
    kept = partitions(other)[0]
    store = new()
    store.commit(batch(1, (a, 0, 10), (b, 0, 10), (kept, 0, 7)))
    made.delete()
    eventually(lambda: a not in listed(admin, name))
    assert store.load().offsets == {kept: 7}

    def create_again():
        admin.create_topics([NewTopic(made.name, 2, 1)])[made.name].result(30)

    create_again()
    progress = store.load()
    assert progress.offsets == {a: 0, b: 0, kept: 7}
    assert progress.topic_ids[made.name] == "id-1"
    store.set_offsets(progress, {a: 5, b: 6}, AuditEntry(1.0, "a run", "gap"), {made.name: "id-2"})
    assert new().load().offsets == {a: 5, b: 6, kept: 7}
    assert new().load().topic_ids[made.name] == "id-2"


class Published(sinks.IdempotentSink):
    """Publishes each batch whole, under its fingerprint, as Parquet does."""

    def __init__(self):
        self.batches = {}

    def write(self, batch, rows):
        self.batches.setdefault(batch.fingerprint, batch)


class Engine:
    """Without Spark: the batch stands for its rows."""

    def __init__(self, sink):
        self._sink = sink

    def prepare(self):
        """No schema is known."""

    def write(self, batch):
        self._sink.write(batch, None)
        return WriteResult()

    def translate_error(self, error):
        return error


def test_deleting_a_topic_under_a_pending_batch_replays_nothing_of_it(kafka, admin, name, topic):
    kept, deleted = topic(partitions=1, name=f"{name}-kept"), topic(partitions=1, name=f"{name}-deleted")
    for one in (kept, deleted):
        partitions(one, 1)
        one.produce([{"id": n} for n in range(3)])
    sink = Published()

    def run(on_data_loss):
        pipeline = hr.Pipeline(
            name=name,
            source=hr.Kafka(kafka.bootstrap, pattern=f"{name}-.*", on_data_loss=on_data_loss),
            sink=sink,
            guarantee="exactly-once",
            offsets=stores.Kafka(kafka.bootstrap),
        )
        Runner(pipeline, open_sources(pipeline.sources), Engine(sink), fail_fast=True).run("caught-up")

    with meanwhile("before commit", die), pytest.raises(Died):
        run("fail")
    (begun,) = sink.batches.values()
    assert len(begun.ranges) == 2
    deleted.delete()
    eventually(lambda: TopicPartition(deleted.name, 0) not in listed(admin, name))
    with pytest.raises(DataLoss, match="1 of its 2 ranges"):
        run("fail")
    kept.produce([{"id": 3}])
    run("earliest")
    assert [batch.ranges for batch in sink.batches.values()] == [
        begun.ranges,
        (Range(TopicPartition(kept.name, 0), 3, 4),),
    ]
    with stores.Kafka(kafka.bootstrap).open(name) as store:
        (recorded,) = store.history()
        assert "batch 1 abandoned: 1 of its 2 ranges" in recorded.note
        assert store.load().offsets == {TopicPartition(kept.name, 0): 4}


@pytest.fixture
def own_broker(tmp_path):
    with dev.Kafka(tmp_path / "own", heap="512m") as server:
        yield server


def make_topic(bootstrap, name, count):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    eventually(lambda: (admin.create_topics([NewTopic(name, count, 1)])[name].result(30), True)[1])
    return [TopicPartition(name, number) for number in range(count)]


def test_a_killed_broker_costs_the_time_it_is_away_and_nothing_else(own_broker, name):
    a, b = make_topic(own_broker.bootstrap, "clicks", 2)
    store = opened_patiently(own_broker.bootstrap, name)
    store.commit(batch(1, (a, 0, 10), (b, 0, 10)))
    pending = batch(2, (a, 10, 20))
    store.begin(pending)
    own_broker.kill()
    for attempt in (lambda: store.commit(pending), store.load):
        began = time.monotonic()
        with pytest.raises(RetriableError):
            attempt()
        assert time.monotonic() - began < 30
    own_broker.start()
    progress = eventually(store.load)
    assert progress.pending == pending
    assert progress.offsets == {a: 10, b: 10}
    eventually(lambda: (store.commit(pending), True)[1])
    assert store.load().offsets == {a: 20, b: 10}


def test_what_was_committed_right_before_the_broker_died_is_there_when_it_is_back(own_broker, name):
    """One time in five this broker forgets to end the transaction: the store does."""
    (a,) = make_topic(own_broker.bootstrap, "clicks", 1)
    done = 0
    for _ in range(3):
        with opened_patiently(own_broker.bootstrap, name) as store:
            for _ in range(10):
                store.commit(batch(done + 1, (a, done, done + 1)))
                done += 1
            own_broker.kill()
            own_broker.start()
            assert eventually(store.load).offsets == {a: done}


def test_a_broker_killed_under_a_run_of_commits_loses_none_that_returned(own_broker, name):
    (a,) = make_topic(own_broker.bootstrap, "clicks", 1)
    store = opened_patiently(own_broker.bootstrap, name)
    killer = threading.Timer(1.0, own_broker.kill)
    killer.start()
    done = 0
    with pytest.raises(RetriableError):
        while True:
            store.commit(batch(done + 1, (a, done, done + 1)))
            done += 1
    killer.join()
    own_broker.start()
    found = eventually(store.load).offsets.get(a, 0)
    assert done <= found <= done + 1


@pytest.mark.timeout(400)
def test_expired_offsets_are_reported_and_a_running_pipeline_keeps_its_own_alive(tmp_path):
    options = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1000}
    with dev.Kafka(tmp_path / "forgetful", heap="512m", options=options) as server:
        a, b = make_topic(server.bootstrap, "clicks", 2)
        assert "1 minutes" in stores.Kafka(server.bootstrap).durability_warnings("left")[0]
        left, kept, half = (opened_patiently(server.bootstrap, name) for name in ("left", "kept", "half"))
        topic_id = real_id(server.bootstrap, "clicks")
        now = 0.0
        kept._now = lambda: now
        for store in (left, kept, half):
            store.commit(batch(1, (a, 0, 10), (b, 0, 20), topic_id=topic_id))
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for name in ("left", "kept", "half"):
            eventually(lambda name=name: len(listed(admin, name)) == 2)
        beats, deadline = 0.0, time.monotonic() + 180
        while listed(admin, "left") or len(listed(admin, "half")) == 2:
            assert time.monotonic() < deadline
            now, beats = now + 3600, beats + 1
            kept.set_lease(RunLease("host", 1, 0.0, beats))
            if len(listed(admin, "half")) == 2:
                with suppress(DataLoss):  # the broker may drop the offset between the two calls
                    half.set_lease(RunLease("host", 2, 0.0, beats))
            time.sleep(3)
        with pytest.raises(DataLoss, match=r"clicks\[0\], clicks\[1\]"):
            left.load()
        with pytest.raises(DataLoss, match=r"1 partition .*clicks\[1\]"):
            half.load()
        assert kept.load().offsets == {a: 10, b: 20}


def test_offsets_that_were_all_set_by_another_tool_begin_an_epoch(new, admin, name, topic):
    """As `kafka-consumer-groups --reset-offsets --all-topics` does: no commit of ours is left in the group."""
    a, b = partitions(topic())
    with new() as store:
        store.commit(batch(1, (a, 0, 10), (b, 0, 10)))
    for at in (a, b):
        set_by_hand(admin, name, at, 0)
    with new() as store:
        progress = store.load()
        assert progress.offsets == {a: 0, b: 0}
        assert progress.epoch > 1
        again = replace(batch(1, (a, 0, 10), (b, 0, 10)), epoch=progress.epoch)
        assert again.fingerprint != batch(1, (a, 0, 10), (b, 0, 10)).fingerprint
        store.begin(again)
    with new() as store:
        assert store.load().pending == again


def test_a_position_set_by_another_tool_is_in_the_history_with_the_newest_batch_that_is_known(new, admin, name, topic):
    """So a sink that is ahead of what is left in the group is not taken for a store restored from a backup."""
    a, b = partitions(topic())
    with new() as store:
        store.commit(batch(1, (a, 0, 10), (b, 0, 10)))
        store.commit(batch(2, (a, 10, 20)))
    set_by_hand(admin, name, a, 0)
    with new() as store:
        assert store.load().last_batch == 1  # that of batch 2 went with the entry
        store.set_lease(RunLease("host", 1, 0.0, 1.0))
        (change,) = store.history()
        assert (change.action, change.after, change.last_batch) == ("reset", {a: 0}, 1)
