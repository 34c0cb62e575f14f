"""The preferred executor or host of each partition."""

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
    """Where Spark should read each partition, as the source's `location=` says.

    A preference: a task that waits longer than `spark.locality.wait` for its executor runs elsewhere.
    """

    def __init__(self, spark: SparkSession, source: Kafka, leaders: Leaders) -> None:
        self._spark = spark
        self._source = source
        self._location = source.location
        self._refresh = source.refresh
        self._leaders = leaders
        self._leader_hosts: dict[TopicPartition, str] = {}
        self._refreshed = -self._refresh
        # A single process offers no choice.
        master = spark.sparkContext.master or ""
        self._single_process = master.startswith("local") and not master.startswith("local-cluster")

    def preferred_hosts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The executor or host of each partition, as Spark names it. Those left out may be read anywhere."""
        if self._single_process:
            return {}
        if isinstance(self._location, Mapping):
            return {at: host for at in partitions if (host := self._source.host(at))}
        if self._location == "brokers":
            return self._on_brokers(list(partitions))
        return spread_evenly(partitions, self._executors())

    def _on_brokers(self, partitions: list[TopicPartition]) -> dict[TopicPartition, str]:
        new_partitions = any(at not in self._leader_hosts for at in partitions)
        if new_partitions or time.monotonic() - self._refreshed >= self._refresh:
            self._leader_hosts = self._leaders({at.topic for at in partitions})
            self._refreshed = time.monotonic()
        return {at: self._leader_hosts[at] for at in partitions if at in self._leader_hosts}

    def _executors(self) -> list[str]:
        blocks = cast("Any", self._spark.sparkContext._jsc).sc().env().blockManager()
        peers = blocks.master().getPeers(blocks.blockManagerId())
        executors = (peers.apply(index) for index in range(peers.size()))
        return sorted(f"executor_{peer.host()}_{peer.executorId()}" for peer in executors)


def spread_evenly(partitions: Iterable[TopicPartition], executors: list[str]) -> dict[TopicPartition, str]:
    """An even assignment, stable while the executors stay the same; neighbours go to different executors."""
    if not executors:
        return {}
    return {at: executors[(zlib.crc32(at.topic.encode()) + at.partition) % len(executors)] for at in partitions}
