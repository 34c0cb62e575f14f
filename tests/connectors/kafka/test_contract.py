"""The Kafka sink and offset store, held to the contract suites."""

import json
import time

import pytest

from headrace import sinks, stores
from headrace.errors import RetriableError
from headrace.testing import stores as suite
from headrace.testing.committed_records import read_committed
from headrace.testing.sinks import TransactionalSinkContract
from headrace.testing.stores import OffsetStoreContract
from headrace.types import TopicPartition


@pytest.fixture(scope="session")
def contract_topics(kafka):
    """Kafka keeps offsets only of topics that exist: those the suite speaks of."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    wanted = [NewTopic("clicks", 2, 1), NewTopic("a.topic.with_odd-name", 8, 1), NewTopic("wide", 1000, 1)]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics(wanted).values():
        made.result(60)
    deadline = time.monotonic() + 90
    while True:  # a new broker's coordinators take a while, and more so on a busy machine
        try:
            with stores.Kafka(kafka.bootstrap).open("warm-up") as store:
                store.load()
            return
        except RetriableError:
            assert time.monotonic() < deadline


class TestKafkaStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, kafka, contract_topics, tmp_path, monkeypatch):
        monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
        # Kafka allows no space in a topic's name.
        monkeypatch.setattr(suite, "ELSEWHERE", TopicPartition("a.topic.with_odd-name", 7))
        self._bootstrap = kafka.bootstrap

    def new_store(self):
        return stores.Kafka(self._bootstrap)


class TestKafkaSink(TransactionalSinkContract):
    """The topics of the suite have ids of their own, so here they are topics of another cluster."""

    @pytest.fixture(autouse=True)
    def place(self, kafka, contract_topics, topic, tmp_path, monkeypatch):
        monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
        monkeypatch.setattr(suite, "ELSEWHERE", TopicPartition("a.topic.with_odd-name", 7))
        self._bootstrap, self._topic = kafka.bootstrap, topic(partitions=3).name

    def new_sink(self):
        return sinks.Kafka(self._bootstrap, self._topic)

    def stored(self):
        rows = [json.loads(record.value()) for record in read_committed(self._bootstrap, self._topic)]
        return [(row["id"], row.get("text")) for row in rows]
