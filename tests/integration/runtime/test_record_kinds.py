"""Records of every kind that Kafka has, through a whole pipeline."""

import json
import time
import uuid
from datetime import UTC, datetime

import duckdb
import pytest
from confluent_kafka import Producer

import headrace as hr
from headrace import sinks, stores
from headrace.kafka.cluster import Cluster
from headrace.testing.committed_records import read_committed
from headrace.types import TopicPartition

SOON = 60.0
COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
    "segment.ms": "100",
}


def carry(where, spark, transform, sink=None, fmt=None, **source):
    sink = sink or sinks.Memory()
    hr.Pipeline(
        name=f"kinds-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=fmt or hr.Text(), **source),
        transform=transform,
        sink=sink,
        guarantee="at-least-once",
        offsets=None if isinstance(sink, sinks.TransactionalSink) else stores.Memory(),
    ).run(until="caught-up", session=spark)
    return sink


def send(where, *records, **settings):
    """(key, value) pairs, to the first partition."""
    producer = Producer({"bootstrap.servers": where.bootstrap, **settings})
    for key, value in records:
        producer.produce(where.name, value, key, partition=0)
    assert producer.flush(30) == 0


def kept(where, spark):
    """The keys of what the log still holds, in its order."""
    rows = carry(where, spark, lambda rows: rows.selectExpr("CAST(_kafka.key AS STRING) AS k", "_kafka.offset AS o"))
    return [row["k"] for row in sorted(rows.rows, key=lambda row: row["o"])]


def test_a_table_of_the_newest_value_is_the_same_whether_the_topic_was_compacted_or_not(spark, topic, tmp_path):
    plain, compacted = topic(partitions=1), topic(partitions=1, config=COMPACT)
    for where in (plain, compacted):
        send(where, (b"k1", b'{"v": "a"}'), (b"k2", b'{"v": "b"}'), (b"k1", b'{"v": "c"}'))
        send(where, (b"k3", b'{"v": "d"}'), (b"k3", None))
    deadline = time.monotonic() + SOON
    while "k1" in (keys := kept(compacted, spark))[:1] and keys.count("k1") > 1:
        assert time.monotonic() < deadline, keys
        send(compacted, (b"filler", b"{}"))  # only segments that are no longer written to are cleaned
    tables = {}
    for name, where in (("plain", plain), ("compacted", compacted)):
        file = tmp_path / f"{name}.duckdb"
        carry(
            where,
            spark,
            lambda rows: rows.where("CAST(_kafka.key AS STRING) <> 'filler'").selectExpr(
                "CAST(_kafka.key AS STRING) AS k", "v", "_kafka"
            ),
            sinks.DuckDB(file, table="newest", mode="upsert", key="k", create=True),
            hr.Json("v STRING"),
        )
        with duckdb.connect(str(file)) as database:
            tables[name] = database.sql("SELECT k, v FROM newest ORDER BY k").fetchall()
    assert tables["plain"] == tables["compacted"] == [("k1", "c"), ("k2", "b")]


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_timestamp_is_the_producers_or_the_brokers_as_the_topic_says(spark, topic, kind):
    where = topic(partitions=1, config={"message.timestamp.type": kind, "retention.ms": "-1"})
    then = datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=UTC)
    began = datetime.now(UTC)
    producer = Producer({"bootstrap.servers": where.bootstrap})
    producer.produce(where.name, b"x", timestamp=int(then.timestamp() * 1000))
    assert producer.flush(30) == 0
    (row,) = carry(where, spark, lambda rows: rows.selectExpr("_kafka.timestamp AS at")).rows
    if kind == "CreateTime":
        assert row["at"] == then
    else:
        assert abs((row["at"] - began).total_seconds()) < SOON


def test_keys_values_and_headers_come_as_they_were_sent(spark, topic):
    where = topic(partitions=1)
    producer = Producer({"bootstrap.servers": where.bootstrap})
    sent = [
        (None, b"no key", None),
        (b"", b"an empty key", [("h", b"")]),
        (b"k", b"", [("h", b"1"), ("h", None), ("g", b"\xff")]),
        (b"k", None, None),
    ]
    for key, value, headers in sent:
        producer.produce(where.name, value, key, headers=headers)
    assert producer.flush(30) == 0
    found = carry(
        where,
        spark,
        lambda rows: rows.selectExpr(
            "value", "_kafka.key AS key", "_kafka.tombstone AS gone", "_kafka.headers AS headers", "_kafka.offset AS at"
        ),
        fmt=hr.Bytes(),
    ).rows
    found.sort(key=lambda row: row["at"])
    assert [(row["key"], row["value"], row["gone"]) for row in found] == [
        (key, value, value is None) for key, value, _ in sent
    ]
    assert [[(h["key"], h["value"]) for h in row["headers"] or ()] for row in found] == [h or [] for _, _, h in sent]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(spark, topic, compression):
    where = topic(partitions=1)
    values = [f"line {number} {'x' * 100}" for number in range(200)]
    send(where, *((None, value.encode()) for value in values), **{"compression.type": compression, "linger.ms": 100})
    found = carry(where, spark, lambda rows: rows.selectExpr("value", "_kafka.offset AS at")).rows
    assert [row["value"] for row in sorted(found, key=lambda row: row["at"])] == values


def test_order_is_that_of_the_log_in_each_partition(spark, topic):
    where = topic(partitions=4)
    where.produce([{"n": number} for number in range(400)])
    found = carry(
        where, spark, lambda rows: rows.selectExpr("n", "_kafka.partition AS p"), fmt=hr.Json("n INT"), split=False
    ).rows
    for partition in range(4):
        assert [row["n"] for row in found if row["p"] == partition] == list(range(partition, 400, 4))


def test_offsets_of_a_batch_stand_behind_its_last_record(spark, topic):
    where = topic(partitions=1)
    where.produce([{"n": number} for number in range(5001)])
    store = stores.Memory()
    hr.Pipeline(
        name="customers",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("n INT")),
        sink=sinks.Memory(),
        guarantee="at-least-once",
        offsets=store,
        limits=hr.Limits(max_records=1_000),
    ).run(until="caught-up", session=spark)
    at = TopicPartition(where.name, 0)
    assert store.open("customers").load().offsets == {at: 5001}
    assert Cluster(where.bootstrap, {}).ends([at]) == {at: 5001}


def test_a_running_count_by_country(spark, topic):
    where = topic(partitions=1)
    send(where, *((name, country) for name, country in [(b"a", b"France"), (b"b", b"USA"), (b"c", b"USA")]))
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Text())
    counts = {}
    for batch in hr.stream(source, offsets=stores.Memory(), until="caught-up", session=spark):
        for row in batch.rows().groupBy("value").count().collect():
            counts[row["value"]] = counts.get(row["value"], 0) + row["count"]
        batch.commit()
    assert json.loads(json.dumps(counts, indent=4)) == {"France": 1, "USA": 2}


def murmur2(key):
    """The hash by which Java's producers choose a partition, without its sign."""
    mask, hashed = 0xFFFFFFFF, 0x9747B28C ^ len(key)
    for at in range(0, len(key) - 3, 4):
        k = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 & mask
        hashed = (hashed * 0x5BD1E995 ^ (k ^ k >> 24) * 0x5BD1E995) & mask
    if rest := key[len(key) // 4 * 4 :]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & mask
    hashed = (hashed ^ hashed >> 13) * 0x5BD1E995 & mask
    return (hashed ^ hashed >> 15) & 0x7FFFFFFF


def test_a_rule_of_ones_own_chooses_the_partition(spark, topic):
    from pyspark.sql.functions import udf

    def choose(customer):
        return 3 if customer == "Banana" else murmur2(customer.encode()) % 3

    assert murmur2(b"Precision Products") == 37184711
    where, target = topic(partitions=1), topic(partitions=4)
    customers = ["Banana", "Precision Products", *(f"customer {number}" for number in range(20))]
    where.produce([{"customer": name} for name in customers])
    hr.Pipeline(
        name=f"kinds-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("customer STRING")),
        transform=lambda rows: rows.withColumn("place", udf(choose, "int")("customer")),
        sink=sinks.Kafka(target.bootstrap, target.name, key="customer", partition="place"),
        guarantee="exactly-once",
    ).run(until="caught-up", session=spark)
    placed = carry(
        target, spark, lambda rows: rows.selectExpr("CAST(_kafka.key AS STRING) AS k", "_kafka.partition AS p")
    )
    found = {row["k"]: row["p"] for row in placed.rows}
    assert (found.pop("Banana"), found["Precision Products"]) == (3, 2)
    assert len(found) == len(customers) - 1
    assert set(found.values()) == {0, 1, 2}


def test_a_record_that_a_rule_of_ones_own_refuses_is_a_dead_letter_and_has_no_partition(spark, topic):
    from pyspark.sql.functions import udf

    def choose(customer):
        if customer is None:
            raise ValueError("no customer")
        return murmur2(customer.encode()) % 3

    where, target, dead = topic(partitions=1), topic(partitions=4), topic(partitions=1)
    where.produce([{"customer": name} for name in ("Banana", None, "Precision Products")])
    hr.Pipeline(
        name=f"kinds-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("customer STRING")),
        transform=lambda rows: rows.withColumn("place", udf(choose, "int")("customer")),
        sink=sinks.Kafka(target.bootstrap, target.name, key="customer", partition="place"),
        guarantee="exactly-once",
        dead_letters=hr.DeadLetters(topic=dead.name),
    ).run(until="caught-up", session=spark)
    assert sorted(record.key() for record in read_committed(target.bootstrap, target.name)) == [
        b"Banana",
        b"Precision Products",
    ]
    (letter,) = read_committed(dead.bootstrap, dead.name)
    headers = dict(letter.headers())
    assert (headers["headrace.offset"], b"no customer" in headers["headrace.error"]) == (b"1", True)
