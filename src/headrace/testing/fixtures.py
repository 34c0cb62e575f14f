"""Pytest fixtures: one broker and one Spark session for the whole test run, a fresh topic for each test.

In a conftest.py: `pytest_plugins = ["headrace.testing.fixtures"]`.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from headrace.dev import Cassandra, HBase, Kafka, Postgres, Redis, ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession


class Topic:
    """A topic of its own for one test, and the ledger of what was acknowledged in it."""

    def __init__(self, bootstrap: str, name: str, partitions: int, config: Mapping[str, str]) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        self.bootstrap = bootstrap
        self.name = name
        self.partitions = partitions
        self.acknowledged: list[bytes | None] = []
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._admin.create_topics([NewTopic(name, partitions, 1, config=dict(config))])[name].result(30)

    def produce(self, values: Iterable[Any], *, partition: int | None = None, **extra: Any) -> None:
        """Produce and wait until acknowledged. Bytes go as they are, None is a tombstone, the rest as JSON."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0})
        failed: list[Any] = []

        def acked(error: Any, message: Any) -> None:
            failed.append(error) if error else self.acknowledged.append(message.value())

        for number, value in enumerate(values):
            raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            at = number % self.partitions if partition is None else partition
            producer.produce(self.name, raw, partition=at, on_delivery=acked, **extra)
            producer.poll(0)
        left = producer.flush(60)
        assert not failed, failed[:3]
        assert left == 0, f"{left} records not acknowledged"

    def grow(self, partitions: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(30)
        self.partitions = partitions

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(30)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A real broker, shared by all tests."""
    with Kafka(tmp_path_factory.mktemp("kafka"), heap="512m") as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A real ZooKeeper, shared by all tests; as with all of these, a run that never asks for it never starts it."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A real PostgreSQL, shared by all tests."""
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A real Redis, shared by all tests."""
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cassandra]:
    """A real Cassandra, shared by all tests."""
    with Cassandra(tmp_path_factory.mktemp("cassandra")) as server:
        yield server


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBase]:
    """A real HBase with its Thrift gateway, shared by all tests."""
    with HBase(tmp_path_factory.mktemp("hbase")) as server:
        yield server


@pytest.fixture
def topic(kafka: Kafka) -> Callable[..., Topic]:
    """Make a topic that no other test knows: `topic(partitions=4)`."""

    def make(partitions: int = 2, config: Mapping[str, str] | None = None) -> Topic:
        return Topic(kafka.bootstrap, f"test-{uuid.uuid4().hex[:12]}", partitions, config or {})

    return make


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session, shared by all tests."""
    from headrace.spark import session

    made = session.create({"spark.driver.memory": "1g"})
    yield made
    made.stop()
