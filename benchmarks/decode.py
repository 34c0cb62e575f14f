"""Rows a second out of the same records of a topic, against Spark's own function for their bytes."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING

import headrace as hr
from benchmarks import topic
from benchmarks.frame import Benchmark, Bound, Contender, Schedule, Setting
from headrace import dev
from headrace.engine.decoder import Decoder
from headrace.engine.range_reader import RangeReader
from headrace.kafka.cluster import Cluster
from headrace.spark.sql import literal
from headrace.types import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

COLUMNS = "id BIGINT, user STRING, page STRING, at TIMESTAMP, ms INT"
# The clicks of the other benchmarks.
_ROWS = (
    "id",
    "concat('user-', lpad(id * 7919 % 100000, 6, '0')) AS user",
    "concat('/articles/', id * 31 % 9973) AS page",
    "timestamp_millis(1767225600000 + id * 1000) AS at",
    "CAST(id * 13 % 30000 AS INT) AS ms",
)
_SPARK = "Spark's own function"


class Decode(Benchmark):
    """Both read the same ranges with the same reader, and what the records become goes to the noop data source.

    Ours says of every record whether it is good, and fails the run for one that is not.
    """

    unit = "rows/s"
    bounds = (Bound(_SPARK, 0.9, "at least"),)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        count = 100_000 if setting.quick else 2_000_000
        rows = setting.spark.range(0, count, 1, 4).selectExpr(*_ROWS)
        columns = {field["name"]: field["type"] for field in rows.schema.jsonValue()["fields"]}
        topic.create(setting.bootstrap, self.name, topic.PARTITIONS)
        written = rows.selectExpr(f"{self.format().encode_expr(columns, self.name)} AS value")
        written.write.format("kafka").option("kafka.bootstrap.servers", setting.bootstrap).option(
            "kafka.linger.ms", "20"
        ).option("kafka.batch.size", str(1 << 20)).option("topic", self.name).save()
        (log,) = Cluster(setting.bootstrap, {}).existing_logs([self.name]).values()
        self._ranges = [Range(at, 0, end) for at, end in log.ends.items()]
        self._count = sum(map(len, self._ranges))
        if self._count != count:
            raise AssertionError(f"{self._count} records are in the topic where {count} were sent")
        self._reader = RangeReader(setting.spark, setting.bootstrap, {}, f"bench-{self.name}")

    @abstractmethod
    def format(self) -> hr.Json | hr.Avro:
        """That writes the records, and reads them."""

    @abstractmethod
    def spark(self) -> str:
        """SQL: what a user of Spark would write for the same columns."""

    def schedule(self) -> Schedule:
        return Schedule(1, 3) if self.setting.quick else Schedule(warm_up=3, counted=9)

    def contenders(self) -> Sequence[Contender]:
        decoder = Decoder(self.setting.spark, self.format(), topics=[self.name])
        return (
            Contender("Headrace", lambda: self._rate(lambda: decoder.decode(self._raw()).rows.drop("_kafka"))),
            Contender(_SPARK, lambda: self._rate(self._theirs)),
        )

    def _raw(self) -> DataFrame:
        return self._reader.rows(self._ranges)

    def _theirs(self) -> DataFrame:
        return self._raw().selectExpr(f"{self.spark()} AS row").select("row.*")

    def _rate(self, rows: Callable[[], DataFrame]) -> float:
        began = time.perf_counter()
        rows().write.format("noop").mode("append").save()
        return self._count / (time.perf_counter() - began)


class DecodeJson(Decode):
    name = "decode-json"
    title = "JSON to columns, against from_json"

    def format(self) -> hr.Json:
        return hr.Json(COLUMNS)

    def spark(self) -> str:
        return f"from_json(CAST(value AS STRING), {literal(COLUMNS)})"


class DecodeAvro(Decode):
    name = "decode-avro"
    title = "Avro of a registry to columns, against from_avro"

    def __init__(self, setting: Setting) -> None:
        registry = setting.servers.enter_context(dev.SchemaRegistry(setting.scratch / "registry"))
        self._format = hr.Avro(registry=registry.url)
        super().__init__(setting)

    def format(self) -> hr.Avro:
        return self._format

    def spark(self) -> str:
        ((_, schema),) = self._format._ids
        return f"from_avro(substring(value, 6), {literal(schema)})"
