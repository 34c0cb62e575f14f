"""Topic ids compared once the rows of a batch were read: on the driver, and in tasks before they store anything."""

import pickle
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from headrace.connectors.kafka import task as kafka_tasks
from headrace.core import topic_check
from headrace.errors import TopicRecreated
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.kafka.planned_topics import PlannedTopics, TopicCheck
from headrace.spark import tasks
from headrace.spark.tasks import Report
from headrace.types import Range, TopicPartition

PLANNED = PlannedTopics("broker:9092", {}, "", {"clicks": "1", "users": "1"})


class Cluster:
    """The ids of the topics that are there."""

    def __init__(self, **ids):
        self._ids = ids

    def ids(self, topics):
        return {topic: self._ids[topic] for topic in topics if topic in self._ids}


@pytest.mark.parametrize("there", [{"clicks": "1", "users": "1"}, {"clicks": "1"}, {}])
def test_the_planned_topics_and_deleted_ones_are_no_reason_to_refuse_what_was_read(there):
    TopicCheck([PLANNED], [Cluster(**there)])()


def test_a_recreated_topic_is_named_with_both_ids():
    with pytest.raises(TopicRecreated, match=r"users was deleted and created again .* expected topic id 1, got 2"):
        TopicCheck([PLANNED, PLANNED], [Cluster(), Cluster(clicks="1", users="2")])()


def test_in_a_task_the_cluster_is_asked_over_a_connection_of_the_worker(monkeypatch):
    check = pickle.loads(pickle.dumps(TopicCheck([PLANNED], [Cluster()])))
    monkeypatch.setattr(PlannedTopics, "cluster", lambda planned: Cluster(clicks="2"))
    with pytest.raises(TopicRecreated, match="clicks"):
        check()


def test_the_driver_compares_only_while_a_batch_is_written():
    asked = []
    with topic_check.checking(lambda: asked.append(1)):
        topic_check.verify()
    topic_check.verify()
    assert asked == [1] and topic_check.current() is None


@pytest.mark.parametrize(("verify_pieces", "stored"), [(True, ["a"]), (False, ["a", "b", "c"])])
def test_a_task_gets_no_piece_that_was_read_after_its_topic_was_recreated(verify_pieces, stored, monkeypatch):
    """Unless it stores nothing before it has read all, and compares the ids itself."""

    def map_in_arrow(rows, function, schema):
        (answer,) = function(iter(rows))
        return SimpleNamespace(collect=answer.to_pylist)

    monkeypatch.setattr(tasks, "map_in_arrow", map_in_arrow)
    ids, there = iter(["1", "2"]), []

    def check():
        TopicCheck([PLANNED], [Cluster(clicks=next(ids, "2"))])()

    def task(batches):
        try:
            there.extend(batches)
            return Report(len(there))
        finally:
            for _ in batches:
                pass

    with topic_check.checking(check):
        if verify_pieces:
            with pytest.raises(TopicRecreated):
                tasks.run(["a", "b", "c"], task)
        else:
            tasks.run(["a", "b", "c"], task, verify_pieces=False)
    assert there == stored


@pytest.mark.parametrize("recreated", [False, True])
def test_a_task_of_a_kafka_sink_commits_only_what_it_read_from_the_planned_topic(recreated, monkeypatch):
    """Where source and target are two clusters, the offset outlives the topic: nothing else would tell."""
    done = []
    producer = Mock(**{"abort_transaction.side_effect": lambda *_: done.append("aborted")})
    before, after = CommittedOffset(0, ""), CommittedOffset(3, "after")
    consumer = Mock(**{"committed.return_value": [Mock(offset=before.offset, metadata=before.metadata)]})
    monkeypatch.setattr(kafka_tasks, "send", lambda *_: done.append("sent") or 3)
    monkeypatch.setattr(kafka_tasks, "commit", lambda *_: done.append("committed"))

    def unchanged():
        done.append("compared")
        TopicCheck([PLANNED], [Cluster(clicks="2" if recreated else "1")])()

    part = kafka_tasks.PartitionWrite(
        Range(TopicPartition("clicks", 0), 0, 3), "clicks", before, after, f"writer {recreated}"
    )
    client = Mock(**{"producer.return_value": producer, "consumer.return_value": consumer})
    task = kafka_tasks.TransactionalProduceTask(Mock(client=client, producer_settings={}), "group", (part,), unchanged)
    report = tasks.report_of(task, iter(["rows"]))
    if recreated:
        assert report.error[0] == TopicRecreated.__name__
        assert done == ["sent", "compared", "aborted"]
    else:
        assert report == Report(3)
        assert done == ["sent", "compared", "committed"]
