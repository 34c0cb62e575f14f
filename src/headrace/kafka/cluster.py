"""Cluster metadata for a source: topics, their ids, their earliest and latest offsets."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from headrace.core.planner import TopicLog
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka.admin import Admin
from headrace.kafka.client import Client
from headrace.kafka.source_set import source_for_topic
from headrace.kafka.subscription import Topics
from headrace.support.retry import RetryPolicy
from headrace.support.suggest import did_you_mean
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from headrace.kafka.source import Kafka
    from headrace.kafka.subscription import Subscription

_NO_LEADER = ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE")
_NO_ID = "A" * 22
"""The topic id reported by brokers without topic ids: 16 zero bytes in Base64."""


class Cluster:
    """The cluster of a source. Every method raises RetriableError while no broker answers.

    If a pipeline reads several clusters, the topic names in offsets and rows have a `prefix`.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, str],
        prefix: str = "",
        client_id: str = "headrace",
    ) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        # End offsets must be reachable: a reader of committed records stops at the last stable offset.
        self._committed = options.get("isolation.level") != "read_uncommitted"
        self._client = Client(bootstrap, options, client_id)
        self._admin = Admin(self._client)

    @classmethod
    def of(cls, source: Kafka, client_id: str = "headrace") -> Self:
        return cls(source.bootstrap, source.options, source.prefix, client_id)

    def close(self) -> None:
        """Close the client and its threads, even if the traceback of an error still refers to this object."""
        del self._admin

    def id(self) -> str:
        """The cluster id, which is the same for all broker addresses."""
        return str(self._admin.describe_cluster().cluster_id)

    def logs(self, subscription: Subscription) -> dict[str, TopicLog]:
        """The id, beginnings and ends of each topic of a subscription. ConfigError if a named topic does not exist."""
        if subscription.names is None:
            matching = sorted({at.topic for at in subscription.wanted(self._admin.topics())})
            described = self._admin.describe_topics(matching)  # a missing topic was deleted a moment ago
        else:
            described = self._admin.describe_topics(subscription.names)
            if missing := [topic for topic in subscription.names if topic not in described]:
                raise self._admin.missing_topics(missing, hint="create the topic, or correct topics=[…]")
        counts = {topic: len(description.partitions) for topic, description in described.items()}
        wanted = set(subscription.wanted(counts))
        return self._logs(described, wanted)

    def led_logs(self, subscription: Subscription, seconds: float = 5.0) -> dict[str, TopicLog]:
        """As `logs`, but waits for leaders, which the partitions of a new topic get with a short delay."""
        from confluent_kafka import KafkaException

        def has_no_leader(error: Exception) -> bool:
            return (
                isinstance(error, RetriableError)
                and isinstance(error.__cause__, KafkaException)
                and error.__cause__.args[0].name() in _NO_LEADER
            )

        policy = RetryPolicy(first=0.2, factor=1.0, within=seconds)
        return policy.call(lambda: self.logs(subscription), has_no_leader)

    def existing_logs(self, topics: Iterable[str]) -> dict[str, TopicLog]:
        """The id, beginnings and ends of all partitions of existing topics, by prefixed topic name."""
        described = self._admin.describe_topics(map(self._cluster_topic_name, topics))
        counts = {topic: len(description.partitions) for topic, description in described.items()}
        return self._logs(described, set(Topics(sorted(counts)).wanted(counts)) if counts else set())

    def _logs(self, described: Mapping[str, Any], wanted: set[TopicPartition]) -> dict[str, TopicLog]:
        beginnings, ends = self._offsets(wanted, "earliest"), self._offsets(wanted, "latest")
        written = self._admin.offsets(dict.fromkeys(wanted, "latest"), committed=False) if self._committed else ends
        return {
            self._prefix + topic: TopicLog(
                topic_id=topic_id(topic, str(description.topic_id)),
                beginnings={self._to_prefixed(at): beginnings[at] for at in sorted(wanted) if at.topic == topic},
                ends={self._to_prefixed(at): ends[at] for at in sorted(wanted) if at.topic == topic},
                left_out=tuple(
                    self._to_prefixed(at)
                    for at in (TopicPartition(topic, number) for number in range(len(description.partitions)))
                    if at not in wanted
                ),
                written={self._to_prefixed(at): written[at] for at in wanted if at.topic == topic},
            )
            for topic, description in described.items()
        }

    def logs_of(self, topics: Iterable[str]) -> dict[str, TopicLog]:
        """The id, beginnings and ends of topics, by prefixed name."""
        return self.logs(Topics([*map(self._cluster_topic_name, topics)]))

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each partition, as readers see it."""
        found = self._offsets(map(self._to_cluster, partitions), "latest")
        return {self._to_prefixed(at): offset for at, offset in found.items()}

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of existing topics, by prefixed name."""
        described = self._admin.describe_topics(map(self._cluster_topic_name, topics))
        return {self._prefix + topic: topic_id(topic, str(found.topic_id)) for topic, found in described.items()}

    def check_topic_exists(self, topic: str) -> str | None:
        """ConfigError if `topic` does not exist and brokers do not create it; a warning if they do."""
        if self._admin.describe_topics([topic]):
            return None
        if self._creates_topics():
            return f"{topic} does not exist; brokers create it with the first record (auto.create.topics.enable)"
        near = did_you_mean(topic, self._admin.topics(), 0.85)
        create = f"headrace topics create {topic} --bootstrap {self._bootstrap}"
        raise ConfigError(
            f"there is no topic {topic} on {self._bootstrap}", hint=f"{near} Else {create}" if near else create
        )

    def _creates_topics(self) -> bool:
        """Whether brokers create missing topics. False if this user may not read their settings."""
        try:
            return bool(self._admin.broker_config()["auto.create.topics.enable"].value == "true")
        except (HeadraceError, KeyError):
            return False

    def leaders(self, topics: Iterable[str]) -> dict[TopicPartition, str]:
        """The leader's host of each partition that has a leader."""
        described = self._admin.describe_topics(sorted(set(map(self._cluster_topic_name, topics))))
        return {
            self._to_prefixed(TopicPartition(topic, partition.id)): partition.leader.host
            for topic, description in described.items()
            for partition in description.partitions
            if partition.leader is not None
        }

    def max_message_bytes(self, subscription: Subscription) -> dict[str, int]:
        """`max.message.bytes` of each topic, without topics whose settings this user may not read."""
        names = subscription.names or sorted({at.topic for at in subscription.wanted(self._admin.topics())})
        return {
            topic: int(config["max.message.bytes"].value) for topic, config in self._admin.topic_configs(names).items()
        }

    def _to_prefixed(self, at: TopicPartition) -> TopicPartition:
        return TopicPartition(self._prefix + at.topic, at.partition)

    def _to_cluster(self, at: TopicPartition) -> TopicPartition:
        return TopicPartition(self._cluster_topic_name(at.topic), at.partition)

    def _cluster_topic_name(self, topic: str) -> str:
        return topic.removeprefix(self._prefix)

    def at_time(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int]:
        """The first offset at or after `time` of each partition, without partitions that have none."""
        found = self._offsets(map(self._to_cluster, partitions), time.timestamp())
        return {self._to_prefixed(at): offset for at, offset in found.items() if offset >= 0}

    def lookup_times(
        self, lookups: Sequence[Mapping[TopicPartition, float]], timeout: float
    ) -> list[dict[TopicPartition, tuple[int, float]]]:
        """Offset and timestamp of the first record at or after each time (epoch seconds), if there is one.

        Sends all requests before it waits for the first response.
        """
        requests = [
            self._admin.request_offsets(
                {self._to_cluster(at): time for at, time in times.items()},
                committed=self._committed,
                timeout=timeout,
            )
            for times in lookups
        ]
        # Does not wait with the error listener, which another thread may be using.
        results = [
            {self._to_prefixed(at): future.result(timeout) for at, future in futures.items()} for futures in requests
        ]
        return [
            {at: (found.offset, found.timestamp / 1000) for at, found in offsets.items() if found.offset >= 0}
            for offsets in results
        ]

    def times(self, positions: Mapping[TopicPartition, int], timeout: float = 5.0) -> dict[TopicPartition, float]:
        """The record timestamp at each position in epoch seconds, without records not read before the timeout."""
        from confluent_kafka import TopicPartition as Position

        if not positions:
            return {}
        consumer = self._client.consumer("headrace-lag")
        wanted = {self._to_cluster(at): offset for at, offset in positions.items()}
        try:
            consumer.assign([Position(at.topic, at.partition, offset) for at, offset in wanted.items()])
            found: dict[TopicPartition, float] = {}
            deadline = monotonic() + timeout
            while len(found) < len(positions) and monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None or message.error():
                    continue
                at = TopicPartition(message.topic() or "", message.partition() or 0)
                found.setdefault(self._to_prefixed(at), message.timestamp()[1] / 1000)
                consumer.pause([Position(at.topic, at.partition)])
            return found
        finally:
            consumer.close()

    def _offsets(self, partitions: Iterable[TopicPartition], position: str | float) -> dict[TopicPartition, int]:
        return self._admin.offsets(dict.fromkeys(partitions, position), committed=self._committed)


class Clusters:
    """The clusters of several sources. Sends each request to the cluster whose source reads the topic."""

    def __init__(self, sources: Iterable[Kafka]) -> None:
        self._sources = dict(enumerate(sources))
        self._clusters = {number: Cluster.of(source) for number, source in self._sources.items()}

    def logs_of(self, topics: Iterable[str]) -> dict[str, TopicLog]:
        by_cluster = self._by_cluster(set(topics))
        return {name: log for cluster, own in by_cluster for name, log in cluster.logs_of(sorted(own)).items()}

    def at_time(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        found: dict[TopicPartition, int] = {}
        for cluster, own in self._by_cluster({at.topic for at in wanted}):
            found.update(cluster.at_time([at for at in wanted if at.topic in own], time))
        return found

    def times(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        found: dict[TopicPartition, float] = {}
        for cluster, own in self._by_cluster({at.topic for at in positions}):
            found.update(cluster.times({at: offset for at, offset in positions.items() if at.topic in own}))
        return found

    def _by_cluster(self, topics: Iterable[str]) -> list[tuple[Cluster, set[str]]]:
        """Each cluster with its topics."""
        found: dict[int, set[str]] = {}
        for topic in topics:
            number = source_for_topic(self._sources, topic)
            if number is None:
                raise ConfigError(
                    f"none of the sources reads {topic}",
                    hint="a topic of a named cluster has its name in front: east.clicks",
                )
            found.setdefault(number, set()).add(topic)
        return [(self._clusters[number], own) for number, own in sorted(found.items())]


def topic_id(topic: str, reported: str) -> str:
    """The topic id that a broker reports; the topic name if the broker has no topic ids."""
    return topic if reported == _NO_ID else reported
