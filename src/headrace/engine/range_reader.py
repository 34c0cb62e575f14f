"""Reads ranges into a DataFrame through Spark's pooled Kafka consumers.

This uses internals of Spark's connector, so only with the versions that it was tested with. With any other version the
public batch reader returns the same rows, more slowly.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from headrace.engine import range_splitting
from headrace.errors import ConfigError
from headrace.kafka.client_security import to_java_config
from headrace.kafka.config_checks import PARTITION_FETCH_BYTES
from headrace.spark.notebook import has_connector
from headrace.types import Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from headrace.engine.locality import LocalityHints

TESTED_VERSIONS = ((4, 0), (4, 3))
"""First and last Spark version (major, minor) whose connector internals were tested."""

_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_POLL_TIMEOUT_MS = 120_000
_NO_IDS: Mapping[str, str] = MappingProxyType({})


def consumer_options(bootstrap: str, options: Mapping[str, str], group: str) -> dict[str, str]:
    """Settings of the executors' consumers. User settings win, except where correctness depends on Headrace's."""
    return {
        # Every poll costs two ListOffsets calls, so few large polls beat many small ones.
        "max.poll.records": "50000",
        "max.partition.fetch.bytes": str(PARTITION_FETCH_BYTES),
        "receive.buffer.bytes": str(1 << 20),
        # A read that ends before the end of the log waits this long for its own prefetch.
        "fetch.max.wait.ms": "5",
        "isolation.level": "read_committed",
        **to_java_config(options),
        "bootstrap.servers": bootstrap,
        # The executors pool consumers by group and partition: only a stable group lets them be reused.
        "group.id": group,
        "key.deserializer": _BYTES,
        "value.deserializer": _BYTES,
        "auto.offset.reset": "none",
        "enable.auto.commit": "false",
        # A deleted topic would be created again, empty.
        "allow.auto.create.topics": "false",
    }


class RangeReader:
    """Reads ranges of one cluster. Created once per run; Java objects are reused across batches."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        options: Mapping[str, str],
        group: str,
        *,
        prefix: str = "",
        locality: LocalityHints | None = None,
    ) -> None:
        self._spark = spark
        self._options = _isolate_group(consumer_options(bootstrap, options, group), spark.sparkContext.applicationId)
        self._internals = _KafkaSourceRdd(spark, self._options) if _is_tested(spark.version) else None
        self._recreations = 0
        self._prefix = prefix
        self._locality = locality

    def rows(self, ranges: Sequence[Range], ids: Mapping[str, str] = _NO_IDS) -> DataFrame:
        """The records of `ranges`: key, value, topic, partition, offset, timestamp, timestampType, headers.

        `ids` are the ids of the topics: they distinguish a recreated topic from the one before.
        """
        return self._with_prefix(self._read(ranges, ids))

    def rows_split_across_cores(self, ranges: Sequence[Range], ids: Mapping[str, str] = _NO_IDS) -> DataFrame:
        """The same records, with long ranges split across several tasks and many short ones coalesced into few."""
        if self._internals is None:  # the public reader takes each partition once
            return self.rows(ranges)
        cores = self._spark.sparkContext.defaultParallelism
        parts = range_splitting.split(ranges, cores)
        frame = self._with_prefix(self._read(parts, ids))
        tasks = range_splitting.task_count(parts, cores)
        return frame.coalesce(tasks) if tasks < len(parts) else frame

    def _read(self, ranges: Sequence[Range], ids: Mapping[str, str]) -> DataFrame:
        if self._internals is None:
            return self.rows_by_public_api([self._in_cluster(r) for r in ranges])
        group = self._options["group.id"]
        if (count := _recreation_count(self._spark.sparkContext.applicationId, group, ids)) != self._recreations:
            self._recreations = count
            self._internals = _KafkaSourceRdd(self._spark, {**self._options, "group.id": f"{group}-recreated-{count}"})
        hosts = self._locality.preferred_hosts({r.at for r in ranges}) if self._locality else {}
        return self._internals.rows([(self._in_cluster(r), hosts.get(r.at)) for r in ranges])

    def _in_cluster(self, r: Range) -> Range:
        if not self._prefix:
            return r
        return Range(TopicPartition(r.at.topic.removeprefix(self._prefix), r.at.partition), r.start, r.until)

    def _with_prefix(self, frame: DataFrame) -> DataFrame:
        """With the prefix of the cluster in the topic names."""
        if not self._prefix:
            return frame
        return frame.withColumn("topic", sql.concat(sql.lit(self._prefix), "topic"))

    def rows_by_public_api(self, ranges: Sequence[Range]) -> DataFrame:
        """The same records through `spark.read.format("kafka")`, with any version of Spark."""
        unsupported = {"group.id", "key.deserializer", "value.deserializer", "auto.offset.reset", "enable.auto.commit"}
        reader = (
            self._spark.read.format("kafka")
            .option("assign", _partitions_json(ranges))
            .option("startingOffsets", _offsets_json({r.at: r.start for r in ranges}))
            .option("endingOffsets", _offsets_json({r.at: r.until for r in ranges}))
            .option("includeHeaders", "true")
            .option("kafkaConsumer.pollTimeoutMs", str(_POLL_TIMEOUT_MS))
        )
        for name, value in self._options.items():
            if name not in unsupported:
                reader = reader.option(f"kafka.{name}", value)
        return reader.load()


class _KafkaSourceRdd:
    """The py4j handles of `org.apache.spark.sql.kafka010`."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._jvm = cast("Any", spark.sparkContext._jvm)
        self._package = self._jvm.org.apache.spark.sql.kafka010
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        if not has_connector(spark):
            raise ConfigError(
                "this Spark session has no Kafka connector: KafkaSourceRDD is not on its class path",
                hint="spark = hr.session(restart=True) ends it and starts another; or build the first session of a"
                " process with hr.configure(builder), or pass `headrace jars path` as spark.jars",
            )
        self._params = self._jvm.java.util.HashMap()
        for name, value in options.items():
            self._params.put(name, value)
        converter = self._package.KafkaRecordToRowConverter()
        self._to_row = converter.toInternalRowWithHeaders()
        self._schema = self._package.KafkaRecordToRowConverter.kafkaSchema(True)
        row = loader.loadClass("org.apache.spark.sql.catalyst.InternalRow")
        self._row_tag = self._jvm.scala.reflect.ClassTag.apply(row)
        self._option = self._jvm.scala.Option.apply
        self._hosts: dict[str | None, Any] = {}
        # Each attribute on the way to a class is a round trip to the JVM, which small batches would notice.
        self._to_seq = self._jvm.PythonUtils.toSeq
        self._source_rdd = self._package.KafkaSourceRDD
        self._offset_range = self._package.KafkaOffsetRange
        self._topic_partition = self._jvm.org.apache.kafka.common.TopicPartition
        self._java_context = spark.sparkContext._jsc.sc()
        self._partitions: dict[TopicPartition, Any] = {}

    def rows(self, ranges: Sequence[tuple[Range, str | None]]) -> DataFrame:
        """The records of each range, read on the preferred host if there is one."""
        offsets = self._to_seq([self._offset_range_of(r, host) for r, host in ranges])
        rdd = self._source_rdd(self._java_context, self._params, offsets, _POLL_TIMEOUT_MS, True)
        session = self._spark._jsparkSession
        frame = session.internalCreateDataFrame(rdd.map(self._to_row, self._row_tag), self._schema, False)
        return DataFrame(frame, self._spark)

    def _offset_range_of(self, r: Range, host: str | None) -> Any:
        at = r.at
        if at not in self._partitions:
            self._partitions[at] = self._topic_partition(at.topic, at.partition)
        return self._offset_range(self._partitions[at], r.start, r.until, self._host_option(host))

    def _host_option(self, host: str | None) -> Any:
        if host not in self._hosts:
            self._hosts[host] = self._option(host)
        return self._hosts[host]


_seen_topic_ids: dict[tuple[str, str], dict[str, list[str]]] = {}


def _recreation_count(application: str, group: str, ids: Mapping[str, str]) -> int:
    """How often a topic that this group reads was recreated.

    Spark keeps prefetched records by group, partition and offset, so it would return records of the deleted topic for
    those of the new one. A new group per recreation prevents this.
    """
    topics = _seen_topic_ids.setdefault((application, group), {})
    for topic, topic_id in ids.items():
        if topic_id not in (seen := topics.setdefault(topic, [])):
            seen.append(topic_id)
    return sum(len(seen) - 1 for seen in topics.values())


_consumer_configs: dict[tuple[str, str], list[dict[str, str]]] = {}


def _isolate_group(options: dict[str, str], application: str) -> dict[str, str]:
    """The same options, with a group of their own if the group is used with other options already.

    Spark pools consumers by group and partition, whatever their cluster and settings are.
    """
    group = options["group.id"]
    known = _consumer_configs.setdefault((application, group), [])
    if options not in known:
        known.append(options)
    number = known.index(options)
    return {**options, "group.id": f"{group}-{number + 1}"} if number else options


def _is_tested(version: str) -> bool:
    major, minor = (int(part) for part in version.split(".")[:2])
    return TESTED_VERSIONS[0] <= (major, minor) <= TESTED_VERSIONS[1]


def _partitions_json(ranges: Sequence[Range]) -> str:
    partitions: dict[str, list[int]] = {}
    for r in ranges:
        partitions.setdefault(r.at.topic, []).append(r.at.partition)
    return json.dumps(partitions)


def _offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    positions: dict[str, dict[str, int]] = {}
    for at, offset in offsets.items():
        positions.setdefault(at.topic, {})[str(at.partition)] = offset
    return json.dumps(positions)
