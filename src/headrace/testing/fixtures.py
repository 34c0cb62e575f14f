"""Pytest fixtures: one broker and one Spark session for the whole test run, a fresh topic for each test.

In a conftest.py: `pytest_plugins = ["headrace.testing.fixtures"]`.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from headrace.dev import (
    Cassandra,
    DynamoDB,
    HBase,
    Kafka,
    Mongo,
    Postgres,
    Redis,
    SchemaRegistry,
    SecureKafka,
    Spark,
    ZooKeeper,
)
from headrace.dev.jvm import SMALL_JVM
from headrace.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession


class Topic:
    """The topic of one test, and the ledger of acknowledged records."""

    def __init__(
        self, bootstrap: str, name: str, partitions: int, config: Mapping[str, str], *, copies: int = 1
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        self.name = name
        self.partitions = partitions
        self.copies = copies
        self.acknowledged: list[bytes | None] = []
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._create(config)

    def _create(self, config: Mapping[str, str]) -> None:
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(self.name, self.partitions, self.copies, config=dict(config))
        self._admin.create_topics([topic])[self.name].result(30)

    def produce(self, values: Iterable[Any], *, partition: int | None = None, **extra: Any) -> None:
        """Produce records and wait until they are acknowledged. Bytes are sent unchanged, None as a tombstone, other
        values as JSON."""
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

    def produce_in_transaction(self, values: Iterable[Any], *, commit: bool) -> None:
        """Produce in one transaction to the first partition; abort it unless `commit`."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": uuid.uuid4().hex, "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, json.dumps(value).encode(), partition=0)
        producer.flush(30)  # aborted records must be in the log as well
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def configure(self, config: Mapping[str, str]) -> None:
        """Change settings of the topic."""
        from confluent_kafka.admin import _config, _resource

        make: Any = _config.ConfigEntry
        operation = _config.AlterConfigOpType.SET
        entries = [make(name, value, incremental_operation=operation) for name, value in config.items()]
        resource = _config.ConfigResource(_resource.ResourceType.TOPIC, self.name, incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def truncate(self, before: int, partition: int = 0) -> None:
        """Delete the records below an offset, as retention would."""
        from confluent_kafka import TopicPartition as Position

        for future in self._admin.delete_records([Position(self.name, partition, before)]).values():
            future.result(30)

    def recreate(self) -> None:
        """Delete the topic and create it again under the same name."""
        from confluent_kafka import KafkaException

        self.delete()

        def created() -> bool:
            with suppress(KafkaException):  # the name is in use until the deletion is complete
                self._create({})
                return True
            return False

        assert wait_until(created, 30, 0.1), f"{self.name} was not created again"

    def grow(self, partitions: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(30)
        self.partitions = partitions

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(30)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A real broker, shared by all tests."""
    # Short check intervals of retention and compaction, so that a test can wait for them.
    short_intervals = {
        "log.retention.check.interval.ms": 500,
        "log.cleaner.backoff.ms": 200,
        "log.segment.delete.delay.ms": 100,
    }
    with Kafka(tmp_path_factory.mktemp("kafka"), heap="512m", options=short_intervals) as server:
        yield server


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """A real broker with TLS and passwords, shared by all tests: `app` may do everything, `guest` nothing."""
    users = {"app": 'a "b" \\c; d=e', "guest": uuid.uuid4().hex}
    with SecureKafka(tmp_path_factory.mktemp("secure-kafka"), heap="512m", users=users) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A real ZooKeeper, shared by all tests. Like the other servers, it starts only if a test uses it."""
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


@pytest.fixture(scope="session")
def mongo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongo]:
    """A server that speaks MongoDB's protocol, shared by all tests."""
    with Mongo(tmp_path_factory.mktemp("mongo")) as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDB]:
    """DynamoDB Local, shared by all tests."""
    with DynamoDB(tmp_path_factory.mktemp("dynamodb")) as server:
        yield server


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """A real schema registry, shared by all tests."""
    with SchemaRegistry(tmp_path_factory.mktemp("schema-registry")) as server:
        yield server


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """A real Spark cluster of two hosts, shared by all tests. A session on it needs a process of its own: a process has
    only one session, and this one may have another."""
    with Spark(tmp_path_factory.mktemp("spark")) as server:
        yield server


@pytest.fixture
def topic(kafka: Kafka) -> Callable[..., Topic]:
    """Creates a topic that no other test uses: `topic(partitions=4)`."""

    def make(
        partitions: int = 2,
        config: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        bootstrap: str | None = None,
    ) -> Topic:
        return Topic(bootstrap or kafka.bootstrap, name or f"test-{uuid.uuid4().hex[:12]}", partitions, config or {})

    return make


def metastore(warehouse: Path) -> dict[str, str]:
    """Options of a session for Hive tables, with a metastore in memory."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:headrace;create=true",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.driver.extraJavaOptions": "-Dderby.stream.error.file=/dev/null",
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session, shared by all tests, with a metastore that ends with it."""
    from headrace.spark import session, task_retries

    warehouse = tmp_path_factory.mktemp("warehouse")
    small = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": " ".join(SMALL_JVM)}
    spark = session.create({**small, **metastore(warehouse), **task_retries.OFF})
    yield spark
    spark.stop()
