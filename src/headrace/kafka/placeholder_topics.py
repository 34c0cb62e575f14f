"""Names of the topics that stand for topics of another cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.kafka.commit_metadata import CommittedOffset


class PlaceholderTopics:
    """Kafka keeps offsets only of topics that exist. So each topic of another cluster has an empty placeholder in this
    one, named `prefix` and its name.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._elsewhere: set[str] = set()

    def add(self, topic: str) -> str:
        """From now on `topic` has a placeholder; returns its name."""
        self._elsewhere.add(topic)
        return self.local_name(topic)

    def local_name(self, topic: str) -> str:
        return self._prefix + topic if topic in self._elsewhere else topic

    def to_local(self, at: TopicPartition) -> TopicPartition:
        return TopicPartition(self.local_name(at.topic), at.partition)

    def to_source(self, at: TopicPartition) -> TopicPartition:
        """The partition that `at`, of this cluster, stands for. Placeholders found in this way are remembered."""
        if not self._prefix or not at.topic.startswith(self._prefix):
            return at
        topic = at.topic.removeprefix(self._prefix)
        self._elsewhere.add(topic)
        return TopicPartition(topic, at.partition)

    def to_position(self, at: TopicPartition, entry: CommittedOffset) -> Any:
        from confluent_kafka import TopicPartition as Position

        return Position(self.local_name(at.topic), at.partition, entry.offset, entry.metadata)
