"""Ranges to a DataFrame through Spark's own pooled Kafka consumers: the direct engine's read.

The route goes through internals of Spark's connector, so it is used only on versions it was tested with;
anywhere else the public batch reader gives the same rows, slower.
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

TESTED = ((4, 0), (4, 3))
"""First and last Spark version (major, minor) whose connector internals are known to fit."""

_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_POLL_TIMEOUT_MS = 120_000
_NO_IDS: Mapping[str, str] = MappingProxyType({})


def consumer_options(bootstrap: str, options: Mapping[str, str], group: str) -> dict[str, str]:
    """Kafka's settings for the executors' consumers. The user's win where correctness does not hang on them."""
    return {
        # Every poll costs two ListOffsets calls, so few large polls beat many small ones.
        "max.poll.records": "50000",
        "max.partition.fetch.bytes": str(PARTITION_FETCH_BYTES),
        "receive.buffer.bytes": str(1 << 20),
        # A read that stops short of the log's end waits this long behind its own prefetch.
        "fetch.max.wait.ms": "5",
        "isolation.level": "read_committed",
        **to_java_config(options),
        "bootstrap.servers": bootstrap,
        # The executors pool consumers by group and partition: a stable group is what makes them reusable.
        "group.id": group,
        "key.deserializer": _BYTES,
        "value.deserializer": _BYTES,
        "auto.offset.reset": "none",
        "enable.auto.commit": "false",
        # A topic that was deleted would come back, and be empty.
        "allow.auto.create.topics": "false",
    }


class RangeReader:
    """Reads ranges of one cluster. Made once per run; the Java objects that repeat are kept."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        options: Mapping[str, str],
        group: str,
        *,
        prefix: str = "",
        location: LocalityHints | None = None,
    ) -> None:
        self._spark = spark
        self._options = _isolate_group(consumer_options(bootstrap, options, group), spark.sparkContext.applicationId)
        self._internals = _KafkaSourceRdd(spark, self._options) if _fits(spark.version) else None
        self._anew = 0
        self._prefix = prefix
        self._location = location

    def rows(self, ranges: Sequence[Range], ids: Mapping[str, str] = _NO_IDS) -> DataFrame:
        """The records of `ranges`: key, value, topic, partition, offset, timestamp, timestampType, headers.

        `ids` tell the topics from earlier ones of the same names.
        """
        return self._named(self._read(ranges, ids))

    def dealt(self, ranges: Sequence[Range], ids: Mapping[str, str] = _NO_IDS) -> DataFrame:
        """The same, with long ranges dealt out to several tasks and many short ones packed into few."""
        if self._internals is None:  # Spark's own reader takes a partition once
            return self.rows(ranges)
        cores = self._spark.sparkContext.defaultParallelism
        parts = range_splitting.split(ranges, cores)
        frame = self._named(self._read(parts, ids))
        wanted = range_splitting.tasks(parts, cores)
        return frame.coalesce(wanted) if wanted < len(parts) else frame

    def _read(self, ranges: Sequence[Range], ids: Mapping[str, str]) -> DataFrame:
        if self._internals is None:
            return self.public([self._theirs(r) for r in ranges])
        group = self._options["group.id"]
        if (anew := _recreation_count(self._spark.sparkContext.applicationId, group, ids)) != self._anew:
            self._anew = anew
            self._internals = _KafkaSourceRdd(self._spark, {**self._options, "group.id": f"{group}-anew-{anew}"})
        hosts = self._location.of({r.at for r in ranges}) if self._location else {}
        return self._internals.rows([(self._theirs(r), hosts.get(r.at)) for r in ranges])

    def _theirs(self, r: Range) -> Range:
        if not self._prefix:
            return r
        return Range(TopicPartition(r.at.topic.removeprefix(self._prefix), r.at.partition), r.start, r.until)

    def _named(self, frame: DataFrame) -> DataFrame:
        """With the names that the topics are known as."""
        if not self._prefix:
            return frame
        return frame.withColumn("topic", sql.concat(sql.lit(self._prefix), "topic"))

    def public(self, ranges: Sequence[Range]) -> DataFrame:
        """The same through `spark.read.format("kafka")`, on any Spark."""
        ours = {"group.id", "key.deserializer", "value.deserializer", "auto.offset.reset", "enable.auto.commit"}
        reader = (
            self._spark.read.format("kafka")
            .option("assign", _assignment(ranges))
            .option("startingOffsets", _positions({r.at: r.start for r in ranges}))
            .option("endingOffsets", _positions({r.at: r.until for r in ranges}))
            .option("includeHeaders", "true")
            .option("kafkaConsumer.pollTimeoutMs", str(_POLL_TIMEOUT_MS))
        )
        for name, value in self._options.items():
            if name not in ours:
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
        self._places: dict[str | None, Any] = {}
        # Every dot on the way to a class is a round trip to the JVM, and a small batch has time for few.
        self._to_seq = self._jvm.PythonUtils.toSeq
        self._source_rdd = self._package.KafkaSourceRDD
        self._offset_range = self._package.KafkaOffsetRange
        self._topic_partition = self._jvm.org.apache.kafka.common.TopicPartition
        self._java_context = spark.sparkContext._jsc.sc()
        self._partitions: dict[TopicPartition, Any] = {}

    def rows(self, ranges: Sequence[tuple[Range, str | None]]) -> DataFrame:
        """The records of each range, read at its host if there is one named."""
        offsets = self._to_seq([self._range(wanted, host) for wanted, host in ranges])
        rdd = self._source_rdd(self._java_context, self._params, offsets, _POLL_TIMEOUT_MS, True)
        session = self._spark._jsparkSession
        frame = session.internalCreateDataFrame(rdd.map(self._to_row, self._row_tag), self._schema, False)
        return DataFrame(frame, self._spark)

    def _range(self, wanted: Range, host: str | None) -> Any:
        at = wanted.at
        if at not in self._partitions:
            self._partitions[at] = self._topic_partition(at.topic, at.partition)
        return self._offset_range(self._partitions[at], wanted.start, wanted.until, self._place(host))

    def _place(self, host: str | None) -> Any:
        if host not in self._places:
            self._places[host] = self._option(host)
        return self._places[host]


_met: dict[tuple[str, str], dict[str, list[str]]] = {}


def _recreation_count(application: str, group: str, ids: Mapping[str, str]) -> int:
    """How often a topic that this group reads was recreated.

    Spark keeps what a consumer fetched ahead by group, partition and offset: it would give out records of a topic that
    is no more for those of a new one. So each time the group is another one.
    """
    topics = _met.setdefault((application, group), {})
    for topic, own in ids.items():
        if own not in (met := topics.setdefault(topic, [])):
            met.append(own)
    return sum(len(met) - 1 for met in topics.values())


_made: dict[tuple[str, str], list[dict[str, str]]] = {}


def _isolate_group(options: dict[str, str], application: str) -> dict[str, str]:
    """With a group of its own for other settings.

    Spark keeps consumers by group and partition, and asks neither for their cluster nor how they were made.
    """
    group = options["group.id"]
    before = _made.setdefault((application, group), [])
    if options not in before:
        before.append(options)
    number = before.index(options)
    return {**options, "group.id": f"{group}-{number + 1}"} if number else options


def _fits(version: str) -> bool:
    major, minor = (int(part) for part in version.split(".")[:2])
    return TESTED[0] <= (major, minor) <= TESTED[1]


def _assignment(ranges: Sequence[Range]) -> str:
    partitions: dict[str, list[int]] = {}
    for r in ranges:
        partitions.setdefault(r.at.topic, []).append(r.at.partition)
    return json.dumps(partitions)


def _positions(offsets: Mapping[TopicPartition, int]) -> str:
    positions: dict[str, dict[str, int]] = {}
    for at, offset in offsets.items():
        positions.setdefault(at.topic, {})[str(at.partition)] = offset
    return json.dumps(positions)
