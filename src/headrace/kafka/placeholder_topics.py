"""Names of the placeholder topics for topics of another cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.kafka.commit_metadata import CommittedOffset


class PlaceholderTopics:
    """Kafka stores offsets only for existing topics. So each topic of another cluster has an empty placeholder topic in
    this one, named `prefix` plus its name.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._replaced_topics: set[str] = set()

    def add(self, topic: str) -> str:
        """Register a placeholder for `topic`; return the placeholder's name."""
        self._replaced_topics.add(topic)
        return self.local_name(topic)

    def local_name(self, topic: str) -> str:
        return self._prefix + topic if topic in self._replaced_topics else topic

    def to_local(self, at: TopicPartition) -> TopicPartition:
        return TopicPartition(self.local_name(at.topic), at.partition)

    def to_source(self, at: TopicPartition) -> TopicPartition:
        """The source partition for `at`, a partition of this cluster. Registers the placeholder if it is one."""
        if not self._prefix or not at.topic.startswith(self._prefix):
            return at
        topic = at.topic.removeprefix(self._prefix)
        self._replaced_topics.add(topic)
        return TopicPartition(topic, at.partition)

    def to_position(self, at: TopicPartition, entry: CommittedOffset) -> Any:
        from confluent_kafka import TopicPartition as Position

        return Position(self.local_name(at.topic), at.partition, entry.offset, entry.metadata)
