"""Offsets in a real ZooKeeper: what old tools see of them, and what happens when things go wrong."""

import json
import threading
import time
import uuid
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from headrace import dev, stores
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.types import Batch, Progress, Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


@pytest.fixture
def name():
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(zookeeper):
    """What an old tool has in hand."""
    with_tool = KazooClient(zookeeper.hosts)
    with_tool.start(30)
    yield with_tool
    with_tool.stop()
    with_tool.close()


@pytest.fixture
def new(zookeeper, name):
    """Another handle on the same group."""
    opened = []

    def make():
        opened.append(stores.ZooKeeper(zookeeper.hosts).open(name))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def batch(number, *ranges):
    return Batch(number, tuple(Range(*r) for r in ranges), {at.topic: "id-1" for at, _, _ in ranges})


def eventually(question, seconds=60.0):
    """The first answer that is no error that may pass."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return question()
        except RetriableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_old_tools_read_plain_numbers_where_they_always_were(new, client, name):
    new().commit(batch(1, (A, 0, 10), (B, 5, 7)))
    assert client.get(f"/consumers/{name}/offsets/clicks/0")[0] == b"10"
    assert client.get(f"/consumers/{name}/offsets/clicks/1")[0] == b"7"


def test_numbers_that_old_tools_wrote_are_taken_over(new, client, name):
    client.create(f"/consumers/{name}/offsets/clicks/0", b"42", makepath=True)
    store = new()
    assert store.load() == Progress({A: 42})
    store.commit(batch(1, (A, 42, 50)))
    client.set(f"/consumers/{name}/offsets/clicks/0", b"45")
    client.create(f"/consumers/{name}/offsets/clicks/1", b"3")
    assert store.load().offsets == {A: 45, B: 3}
    assert store.load().last_batch == 1


def test_a_number_set_between_read_and_swap_is_noticed(new, client, name):
    store = new()
    store.commit(batch(1, (A, 0, 10)))
    state, version = store.read()
    client.set(f"/consumers/{name}/offsets/clicks/0", b"3")
    assert store.swap(version, state, state.committed(batch(2, (A, 10, 20)))) is False
    state, version = store.read()
    assert state.progress.offsets == {A: 3}
    client.set(f"/consumers/{name}/offsets/clicks/0", b"4")
    assert store.swap(version, state, state.begun(batch(2, (A, 3, 20)))) is False


def test_a_number_set_under_a_pending_batch_gives_the_batch_up(new, client, name):
    store, running = new(), batch(2, (A, 10, 20), (B, 10, 20))
    store.commit(batch(1, (A, 0, 10), (B, 0, 10)))
    store.begin(running)
    client.set(f"/consumers/{name}/offsets/clicks/0", b"3")
    with pytest.raises(OffsetConflict):
        store.commit(running)
    assert store.load().pending is None
    assert store.load().offsets == {A: 3, B: 10}


def test_a_node_deleted_and_recreated_manually_counts(new, client, name):
    store = new()
    for number in range(3):
        store.commit(batch(number + 1, (A, number, number + 1), (B, number, number + 1)))
    client.delete(f"/consumers/{name}/offsets/clicks/0")
    assert new().load().offsets == {B: 3}
    client.create(f"/consumers/{name}/offsets/clicks/0", b"1")
    assert store.load().offsets == {A: 1, B: 3}
    # It was set back: what is read again belongs to a new epoch.
    store.commit(replace(batch(4, (A, 1, 9), (B, 3, 9)), epoch=store.load().epoch))
    assert new().load().offsets == {A: 9, B: 9}
    assert new().load().epoch == 1


def test_a_zombie_changes_nothing(new):
    old, successor = new(), new()
    old.commit(batch(1, (A, 0, 10)))
    state, version = old.read()
    successor.commit(batch(2, (A, 10, 30)))
    assert old.swap(version, state, state.committed(batch(2, (A, 10, 20)))) is False
    with pytest.raises(OffsetConflict):
        old.commit(batch(2, (A, 10, 20)))
    assert successor.load().offsets == {A: 30}


def test_all_partitions_of_a_read_belong_together_while_a_run_moves_them(new, zookeeper, name):
    many = [TopicPartition("wide", number) for number in range(300)]
    store, stop, seen = new(), threading.Event(), set()
    store.commit(batch(0, *((at, 0, 0) for at in many)))

    def watch():
        with stores.ZooKeeper(zookeeper.hosts).open(name) as reader:
            while not stop.is_set():
                progress = reader.load()
                seen.add((frozenset(progress.offsets.values()), progress.last_batch, len(progress.offsets)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    number, deadline = 0, time.monotonic() + 60
    while number < 20 or (len(seen) < 3 and time.monotonic() < deadline):
        store.commit(batch(number + 1, *((at, number, number + 1) for at in many)))
        number += 1
    stop.set()
    watcher.join()
    assert all(offsets == {last} and count == 300 for offsets, last, count in seen), seen
    assert len(seen) > 1


def test_a_thousand_partitions_stay_far_below_the_limit_of_a_request(new, client, name):
    many = [TopicPartition("a-topic-with-a-rather-long-name-as-they-are", number) for number in range(1000)]
    store = new()
    store.commit(batch(2**40, *((at, 0, 2**50) for at in many)))
    store.begin(batch(2**40 + 1, *((at, 2**50, 2**51) for at in many)))
    text, _ = client.get(f"/consumers/{name}/headrace")
    assert len(json.loads(text)["pending"]["ranges"]) == 1000
    assert len(text) < 300_000, len(text)


def test_more_than_a_server_takes_at_once_is_reported(new):
    store = new()
    store.largest_request = 5_000
    with pytest.raises(ConfigError, match="bytes in one request"):
        store.commit(batch(1, *((TopicPartition("wide", number), 0, 1) for number in range(200))))
    assert store.load() == Progress()


def test_a_lost_session_is_survived(new, zookeeper):
    store = new()
    store.commit(batch(1, (A, 0, 10)))
    begun = batch(2, (A, 10, 20))
    store.begin(begun)
    thief = KazooClient(zookeeper.hosts, client_id=store._client.client_id)
    thief.start(30)
    thief.stop()  # ends the session that both were in
    thief.close()
    assert eventually(store.load).pending == begun
    eventually(lambda: store.commit(begun))
    assert store.load().offsets == {A: 20}


def test_a_killed_server_costs_the_time_it_is_away_and_nothing_else(tmp_path, name):
    with dev.ZooKeeper(tmp_path / "own") as server, stores.ZooKeeper(server.hosts).open(name) as store:
        store.commit(batch(1, (A, 0, 10), (B, 0, 10)))
        begun = batch(2, (A, 10, 20))
        store.begin(begun)
        server.kill()
        for attempt in (lambda: store.commit(begun), store.load):
            began = time.monotonic()
            with pytest.raises(RetriableError):
                attempt()
            assert time.monotonic() - began < 20
        server.start()
        progress = eventually(store.load)
        assert progress.offsets.keys() == {A, B}
        # The commit that was on its way may have come through: the read tells.
        if progress.pending is not None:
            assert progress.pending == begun
            eventually(lambda: store.commit(begun))
        assert store.load().offsets == {A: 20, B: 10}


def test_a_server_killed_under_a_run_of_commits_loses_none_that_returned(tmp_path, name):
    with dev.ZooKeeper(tmp_path / "own") as server, stores.ZooKeeper(server.hosts).open(name) as store:
        killer, done = threading.Timer(1.0, server.kill), 0
        killer.start()
        with pytest.raises(RetriableError):
            while True:
                store.commit(batch(done + 1, (A, done, done + 1)))
                done += 1
        killer.join()
        server.start()
        assert done <= eventually(store.load).offsets.get(A, 0) <= done + 1


def test_the_audit_log_keeps_the_newest_changes(new, monkeypatch):
    monkeypatch.setattr("headrace.connectors.zookeeper.offset_store._MAX_AUDIT_ENTRIES", 3)
    store = new()
    for number in range(5):
        store.append_audit(AuditEntry(float(number), "somebody", "note"))
    assert [change.at for change in new().history()] == [2.0, 3.0, 4.0]


def test_a_server_that_is_not_there_is_reported_within_seconds(name):
    began = time.monotonic()
    store = stores.ZooKeeper("127.0.0.1:1")
    with pytest.raises(RetriableError, match="does not answer"):
        store.open(name)
    store.close()
    assert time.monotonic() - began < 15


def test_a_path_that_is_not_there_is_reported(zookeeper, name):
    store = stores.ZooKeeper(f"{zookeeper.hosts}/no/such/path")
    with pytest.raises(ConfigError, match="/no/such/path"):
        store.open(name)
    store.close()


def test_a_group_that_cannot_be_a_node_is_reported(zookeeper):
    with pytest.raises(ConfigError, match="a/b"):
        stores.ZooKeeper(zookeeper.hosts, group="a/b").open("clicks")


def test_nodes_closed_to_this_user_are_reported_and_opened_by_auth(zookeeper, client, name):
    acl = make_digest_acl("ann", "geheim", all=True)
    client.ensure_path("/consumers")
    client.create(f"/consumers/{name}", acl=[acl])
    with stores.ZooKeeper(zookeeper.hosts).open(name) as store, pytest.raises(ConfigError, match=name) as error:
        store.commit(batch(1, (A, 0, 10)))
    assert "auth=" in error.value.hint
    with stores.ZooKeeper(zookeeper.hosts, auth=("digest", "ann:geheim")).open(name) as store:
        store.commit(batch(1, (A, 0, 10)))
        assert store.load().offsets == {A: 10}
        assert "geheim" not in repr(store)


def test_a_node_that_holds_no_number_is_named(new, client, name):
    client.create(f"/consumers/{name}/offsets/clicks/0", b"ten", makepath=True)
    with pytest.raises(ConfigError, match=f"/consumers/{name}/offsets/clicks/0"):
        new().load()
