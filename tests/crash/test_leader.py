"""The leader of a partition dies in a cluster of three: the run continues with the next leader and loses nothing."""

import time
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from crash.feed import Feed
from crash.pipelines import SERVERS, Case
from crash.runs import Run, drained, until
from headrace.dev import Kafka
from headrace.errors import RetriableError
from headrace.kafka.cluster import Cluster
from headrace.testing.fixtures import Topic

pytestmark = pytest.mark.timeout(900)  # whole processes, on a machine that may be busy
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Kafka(tmp_path_factory.mktemp("three"), brokers=3, heap="256m") as server:
        yield server


def leader_of(cluster, topic, partition):
    found = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(topic, timeout=30)
    number = found.topics[topic].partitions[partition].leader
    (broker,) = [broker for broker in cluster.brokers if broker.number == number]
    return broker


def end_of(cluster, topic, partition):
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looking", "log_level": 0})
    try:
        return reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
    finally:
        reader.close()


def stored_up_to(run, partition):
    return max((r[3] for event in run.done for r in event["batch"]["ranges"] if r[1] == partition), default=0)


def test_clients_find_another_broker_when_the_one_that_they_ask_dies(cluster):
    """Each client chooses one of the three brokers at random; some of the twelve choose the one that dies."""
    topic = Topic(cluster.bootstrap, f"asked-{uuid.uuid4().hex[:8]}", 1, {}, copies=3).name
    clients = [Cluster(cluster.bootstrap, {}) for _ in range(12)]
    known = [client.ids([topic]) for client in clients]
    cluster.brokers[2].kill()
    try:
        deadline = time.monotonic() + 60  # by default it would take five minutes
        for client in clients:
            until(lambda client=client: answer(client, topic) == known[0], seconds=deadline - time.monotonic())
    finally:
        cluster.brokers[2].start()
    assert known == [known[0]] * 12


def answer(client, topic):
    try:
        return client.ids([topic])
    except RetriableError:
        return None


@pytest.mark.matrix(sample=1)
@pytest.mark.parametrize("kind", ["duckdb", "kafka"])
def test_a_run_goes_on_with_the_next_leader_and_loses_nothing(kind, cluster, spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv(SERVERS["kafka"], cluster.bootstrap)
    safe = {"min.insync.replicas": "2"}
    events = Topic(cluster.bootstrap, f"events-{uuid.uuid4().hex[:8]}", PARTITIONS, safe, copies=3)
    case = Case(
        kind=kind, guarantee="exactly-once", bootstrap=cluster.bootstrap, topic=events.name, directory=str(tmp_path)
    )
    feed = Feed(cluster.bootstrap, events.name, PARTITIONS)
    leader = leader_of(cluster, events.name, 0)
    with Run(case) as run:
        with feed.flowing(rate=300):
            run.wait_for_more(batches=3)
            run.wait_for(lambda: run.open_batch)
            end = end_of(cluster, events.name, 0)
            died = time.monotonic()
            leader.kill()
            run.wait_for(lambda: stored_up_to(run, 0) > end, seconds=300)  # accepted by the next leader
            seconds = time.monotonic() - died
        assert leader_of(cluster, events.name, 0) is not leader
        assert run.stop() == 0, str(run)
    with capsys.disabled():
        print(f"\n{kind}: records of the next leader were stored {seconds:.1f} s after the death of the leader")
    leader.start()

    assert len(run.seen("RunStarted")) == 1
    assert len(feed.acknowledged) > 0
    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"
