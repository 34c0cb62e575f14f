"""The direct read: the same rows as Spark's public reader, by consumers that are kept."""

import uuid

import pytest
from confluent_kafka import Producer

from headrace.engine import range_reader
from headrace.engine.range_reader import RangeReader
from headrace.errors import ConfigError
from headrace.kafka.cluster import Cluster
from headrace.types import Range, TopicPartition

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


@pytest.fixture
def reader(kafka, spark):
    return RangeReader(spark, kafka.bootstrap, {}, group=f"headrace-test-{uuid.uuid4().hex[:8]}")


def rows(frame):
    assert frame.columns == COLUMNS
    return sorted(tuple(_plain(row[name]) for name in COLUMNS) for row in frame.collect())


def _plain(value):
    match value:
        case bytearray() | bytes():
            return f"bytes {bytes(value)!r}"
        case list():
            return f"headers {[(header['key'], _plain(header['value'])) for header in value]}"
        case _:
            return str(value)


def of(topic, *ranges):
    return [Range(TopicPartition(topic.name, number), start, until) for number, start, until in ranges]


def flush(producer):
    assert producer.flush(30) == 0


def odd_records(topic):
    """Keys, headers and timestamps of every kind, in three partitions."""
    producer = Producer({"bootstrap.servers": topic.bootstrap, "acks": "all", "log_level": 0})
    keys = [None, b"", b"k", bytes(range(256))]
    headers = [None, [("a", b"1")], [("a", b"1"), ("a", None), ("ü", b"")], [("long", b"x" * 3000)]]
    for number in range(90):
        producer.produce(
            topic.name,
            None if number % 7 == 0 else f"value {number}".encode(),
            key=keys[number % 4],
            headers=headers[(number // 4) % 4],
            partition=number % 3,
            timestamp=1_700_000_000_000 + number * 997,
        )
    flush(producer)


def test_the_direct_and_the_public_read_give_equal_rows(topic, reader):
    where = topic(partitions=3, config={"retention.ms": "-1"})  # the records are of 2023
    odd_records(where)
    whole = of(where, (0, 0, 30), (1, 0, 30), (2, 0, 30))
    found = rows(reader.rows(whole))
    assert len(found) == 90
    assert found == rows(reader.rows_by_public_api(whole))
    parts = of(where, (0, 3, 4), (1, 11, 29), (2, 29, 30))
    found = rows(reader.rows(parts))
    assert len(found) == 1 + 18 + 1
    assert found == rows(reader.rows_by_public_api(parts))


def test_a_range_is_read_the_same_again_and_in_any_order(topic, reader):
    where = topic(partitions=1)
    where.produce([{"n": number} for number in range(100)])
    for start, until in [(50, 60), (0, 10), (50, 60), (99, 100), (0, 100)]:
        offsets = [row["offset"] for row in reader.rows(of(where, (0, start, until))).select("offset").collect()]
        assert offsets == list(range(start, until))


def test_many_partitions_and_two_topics_are_read_at_once(topic, reader):
    one, other = topic(partitions=5), topic(partitions=1)
    one.produce([{"n": number} for number in range(50)])
    other.produce([{"n": number} for number in range(10)])
    ranges = [*of(one, *((number, 0, 10) for number in range(5))), *of(other, (0, 2, 10))]
    counts = {
        (row["topic"], row["partition"]): row["count"]
        for row in reader.rows(ranges).groupBy("topic", "partition").count().collect()
    }
    assert counts == {**{(one.name, number): 10 for number in range(5)}, (other.name, 0): 8}


def transaction(topic, values, *, commit):
    producer = Producer(
        {"bootstrap.servers": topic.bootstrap, "transactional.id": f"test-{uuid.uuid4().hex}", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic.name, value, partition=0)
    flush(producer)
    producer.commit_transaction(30) if commit else producer.abort_transaction(30)


@pytest.fixture
def transactional(topic):
    """0-2 committed, 3 control, 4-6 aborted, 7 control, 8-10 committed, 11 control, 12-13 aborted, 14 control."""
    where = topic(partitions=1)
    transaction(where, [b"c0", b"c1", b"c2"], commit=True)
    transaction(where, [b"a4", b"a5", b"a6"], commit=False)
    transaction(where, [b"c8", b"c9", b"c10"], commit=True)
    transaction(where, [b"a12", b"a13"], commit=False)
    return where


@pytest.mark.timeout(90)
def test_aborted_and_control_records_are_never_read_wherever_a_range_begins_or_ends(transactional, reader, kafka):
    at = TopicPartition(transactional.name, 0)
    assert Cluster(kafka.bootstrap, {}).ends([at]) == {at: 15}
    committed = {0: b"c0", 1: b"c1", 2: b"c2", 8: b"c8", 9: b"c9", 10: b"c10"}
    for start, until in [(0, 15), (0, 3), (0, 4), (2, 7), (3, 4), (3, 8), (4, 7), (7, 9), (10, 12), (11, 15), (14, 15)]:
        found = reader.rows(of(transactional, (0, start, until))).select("offset", "value").collect()
        wanted = {offset: value for offset, value in committed.items() if start <= offset < until}
        assert {row["offset"]: bytes(row["value"]) for row in found} == wanted, (start, until)
        assert len(found) == len(wanted)


def test_the_direct_and_the_public_read_agree_on_a_transactional_topic(transactional, reader):
    for span in [(0, 15), (2, 9)]:
        ranges = of(transactional, (0, *span))
        assert rows(reader.rows(ranges)) == rows(reader.rows_by_public_api(ranges))


def test_an_open_transaction_is_not_promised_to_a_reader(topic, kafka):
    where = topic(partitions=1)
    where.produce([{"n": 1}, {"n": 2}])
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"open-{uuid.uuid4().hex}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(where.name, b"open", partition=0)
    flush(producer)
    at = TopicPartition(where.name, 0)
    try:
        assert Cluster(kafka.bootstrap, {}).ends([at]) == {at: 2}
        assert Cluster(kafka.bootstrap, {"isolation.level": "read_uncommitted"}).ends([at]) == {at: 3}
    finally:
        producer.abort_transaction(30)


def consumers_made(spark):
    """How many consumers the executors' pool has made in its life."""
    loader = spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    holder = loader.loadClass("org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer$")
    pool = _field(holder, "consumerPool", _field(holder, "MODULE$", None))
    return _field(pool.getClass(), "pool", pool).getCreatedCount()


def _field(cls, name, target):
    field = next(found for found in cls.getDeclaredFields() if found.getName().split("$$")[-1] == name)
    field.setAccessible(True)
    return field.get(target)


def client_ids(spark):
    """Of the consumers in the JVM of this session, whose tasks run in that of the driver: what brokers see."""
    jvm = spark.sparkContext._jvm
    arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 2)  # the second one stays null
    arguments[0] = jvm.javax.management.ObjectName("kafka.consumer:type=consumer-metrics,client-id=*")
    methods = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
    (query,) = [method for method in methods if method.getName() == "queryNames"]
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    return {name.getKeyProperty("client-id") for name in query.invoke(server, arguments)}


def test_the_client_id_of_task_consumers_is_the_pipeline_name_by_default(kafka, topic, spark):
    where, name = topic(partitions=2), f"headrace-named-{uuid.uuid4().hex[:8]}"
    where.produce([{"n": number} for number in range(10)])
    before = client_ids(spark)
    assert len(rows(RangeReader(spark, kafka.bootstrap, {}, group=name).rows(of(where, (0, 0, 5), (1, 0, 5))))) == 10
    made = client_ids(spark) - before
    assert len(made) == 2
    assert [one for one in made if not one.startswith(f"consumer-{name}-")] == []
    other = RangeReader(spark, kafka.bootstrap, {"client.id": f"my-{name}"}, group=f"{name}-other")
    assert len(rows(other.rows(of(where, (0, 0, 5))))) == 5
    assert client_ids(spark) - before - made == {f"my-{name}"}


def test_consumers_are_kept_from_batch_to_batch(topic, reader, spark):
    where = topic(partitions=2)
    where.produce([{"n": number} for number in range(200)])

    def read(start):
        assert reader.rows(of(where, (0, start, start + 20), (1, start, start + 20))).count() == 40

    before = consumers_made(spark)
    read(0)
    assert consumers_made(spark) == before + 2
    for start in (20, 40, 60):
        read(start)
    assert consumers_made(spark) == before + 2


def test_offsets_that_are_gone_fail_the_read_and_are_not_skipped(topic, reader, kafka):
    from confluent_kafka import TopicPartition as Position
    from confluent_kafka.admin import AdminClient

    where = topic(partitions=1)
    where.produce([{"n": number} for number in range(50)])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for future in admin.delete_records([Position(where.name, 0, 20)]).values():
        future.result(30)
    with pytest.raises(Exception, match=r"(?i)offset"):
        reader.rows(of(where, (0, 10, 30))).count()


# settings


def test_the_settings_that_correctness_hangs_on_cannot_be_changed():
    options = range_reader.consumer_options(
        "k:9092", {"max.poll.records": "7", "auto.offset.reset": "earliest"}, "group"
    )
    assert options["max.poll.records"] == "7"
    assert options["auto.offset.reset"] == "none"
    assert options["enable.auto.commit"] == "false"
    assert options["group.id"] == "group"
    assert options["isolation.level"] == "read_committed"


@pytest.mark.parametrize(
    ("version", "fits"),
    [("4.0.0", True), ("4.2.0", True), ("4.3.1-SNAPSHOT", True), ("3.5.1", False), ("4.4.0", False), ("5.0.0", False)],
)
def test_the_internals_are_used_only_on_versions_they_were_tested_with(version, fits):
    assert range_reader._is_tested(version) is fits


def test_on_another_version_the_public_reader_is_used(topic, kafka, spark, monkeypatch):
    monkeypatch.setattr(range_reader, "TESTED_VERSIONS", ((9, 0), (9, 9)))
    where = topic(partitions=1)
    where.produce([{"n": number} for number in range(10)])
    reader = RangeReader(spark, kafka.bootstrap, {}, group="headrace-public")
    frame = reader.rows(of(where, (0, 2, 7)))
    assert "LogicalRDD" not in frame._jdf.queryExecution().analyzed().toString()
    assert len(rows(frame)) == 5


class Without:
    """A session whose JVM has no Kafka connector."""

    version = "4.2.0"

    def __init__(self, spark):
        self._spark = spark
        self.sparkContext = self

    @property
    def _jvm(self):
        return self

    def __getattr__(self, name):
        return self

    def __call__(self, *_):
        return self

    def loadClass(self, name):
        raise RuntimeError(f"java.lang.ClassNotFoundException: {name}")


def test_a_session_without_the_connector_fails_with_a_hint(spark):
    with pytest.raises(ConfigError, match="no Kafka connector") as refused:
        RangeReader(Without(spark), "k:9092", {}, group="g")
    assert "hr.configure(builder)" in refused.value.hint
    assert "headrace jars path" in refused.value.hint
