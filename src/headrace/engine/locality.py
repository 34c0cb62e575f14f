"""On which executors the partitions are read."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from headrace.kafka.source import Kafka
    from headrace.types import TopicPartition

    Leaders = Callable[[Iterable[str]], dict[TopicPartition, str]]


class LocalityHints:
    """Says where Spark should read each partition, as the source asks. A wish: a task that waits too long for its
    executor (`spark.locality.wait`) runs elsewhere."""

    def __init__(self, spark: SparkSession, source: Kafka, leaders: Leaders) -> None:
        self._spark = spark
        self._source = source
        self._wanted = source.location
        self._refresh = source.refresh
        self._leaders = leaders
        self._found: dict[TopicPartition, str] = {}
        self._asked = -self._refresh
        # Inside one process there is nothing to choose.
        master = spark.sparkContext.master or ""
        self._one = master.startswith("local") and not master.startswith("local-cluster")

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The executor or host of each, in Spark's words; those left out may be read anywhere."""
        if self._one:
            return {}
        if isinstance(self._wanted, Mapping):
            return {at: host for at in partitions if (host := self._source.host(at))}
        if self._wanted == "brokers":
            return self._on_brokers(list(partitions))
        return consistent(partitions, self._executors())

    def _on_brokers(self, partitions: list[TopicPartition]) -> dict[TopicPartition, str]:
        unknown = any(at not in self._found for at in partitions)
        if unknown or time.monotonic() - self._asked >= self._refresh:
            self._found = self._leaders({at.topic for at in partitions})
            self._asked = time.monotonic()
        return {at: self._found[at] for at in partitions if at in self._found}

    def _executors(self) -> list[str]:
        blocks = cast("Any", self._spark.sparkContext._jsc).sc().env().blockManager()
        peers = blocks.master().getPeers(blocks.blockManagerId())
        each = (peers.apply(number) for number in range(peers.size()))
        return sorted(f"executor_{peer.host()}_{peer.executorId()}" for peer in each)


def consistent(partitions: Iterable[TopicPartition], executors: list[str]) -> dict[TopicPartition, str]:
    """An even spread that stays the same while the executors do: neighbours go to different ones."""
    if not executors:
        return {}
    return {at: executors[(zlib.crc32(at.topic.encode()) + at.partition) % len(executors)] for at in partitions}
