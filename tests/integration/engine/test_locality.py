"""Where partitions are read, on a Spark cluster of two workers that are different hosts."""

import json
import subprocess
import sys
import zlib

import pytest

SESSION = """
import json, sys, time
import headrace as hr
from headrace.spark import session
from headrace.engine.source_readers import SourceReaders
from headrace.engine.locality import LocalityHints
from headrace.types import Range, TopicPartition

options, bootstrap, topic, locations = json.loads(sys.argv[1])
spark = session.create(options)
deadline, executors = time.monotonic() + 60, LocalityHints(spark, hr.Kafka(bootstrap, topics=[topic]), dict)._executors
while len(executors()) < 2:  # they come one after the other, and a partition goes to one that is there
    assert time.monotonic() < deadline, executors()
    time.sleep(0.1)


def host(rows):
    import os

    for row in rows:
        yield row["partition"], os.environ["SPARK_LOCAL_IP"]


found = []
for location in locations:
    source = hr.Kafka(bootstrap, topics=[topic], location=location)
    (one,) = SourceReaders(spark, source, "headrace-location", whole_partitions=True).by_name.values()
    ranges = [Range(TopicPartition(topic, number), 0, 1) for number in range(4)]
    found.append(dict(one.raw(ranges, {}).rdd.mapPartitions(host).collect()))
print(json.dumps(found))
spark.stop()
"""


@pytest.fixture(scope="module")
def ran(spark_cluster, kafka):
    """Where each of four partitions was read, by location."""
    from headrace.testing.fixtures import Topic

    where = Topic(kafka.bootstrap, "test-location", 4, {})
    where.produce([{"n": number} for number in range(4)])
    options = {
        "spark.master": spark_cluster.address,
        **spark_cluster.authentication,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.locality.wait": "30s",  # a task that is held up elsewhere must not be told to run where it was not asked
    }
    named = {"test-location": {"0": "127.0.0.2", "1": "127.0.0.2", "2": "127.0.0.1", "3": "127.0.0.2"}}
    asked = json.dumps([options, where.bootstrap, where.name, ["consistent", "consistent", "brokers", named]])
    command = [sys.executable, "-c", SESSION, asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    keys = ["consistent", "again", "brokers", "named"]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: {int(at): host for at, host in one.items()} for name, one in zip(keys, found, strict=True)}


def test_consistent_spreads_the_partitions_evenly_and_the_same_each_time(ran):
    assert ran["consistent"] == ran["again"]
    assert sorted(ran["consistent"].values()) == ["127.0.0.1"] * 2 + ["127.0.0.2"] * 2
    assert ran["consistent"][0] != ran["consistent"][1], "neighbours go to different executors"


def test_brokers_reads_each_partition_at_its_leader(ran):
    assert set(ran["brokers"].values()) == {"127.0.0.1"}


def test_named_hosts_are_where_the_partitions_are_read(ran):
    assert ran["named"] == {0: "127.0.0.2", 1: "127.0.0.2", 2: "127.0.0.1", 3: "127.0.0.2"}


def test_the_spread_does_not_change_with_the_order_of_anything():
    from headrace.engine.locality import spread_evenly
    from headrace.types import TopicPartition

    executors = ["executor_a_1", "executor_b_2", "executor_c_3"]
    partitions = [TopicPartition("t", number) for number in range(9)]
    spread = spread_evenly(partitions, executors)
    assert spread_evenly(reversed(partitions), executors) == spread
    assert sorted(spread.values()) == sorted(executors * 3)
    assert spread[partitions[0]] == executors[zlib.crc32(b"t") % 3]
    assert spread_evenly(partitions, []) == {}
