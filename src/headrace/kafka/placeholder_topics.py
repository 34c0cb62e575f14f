"""How topics of another cluster are called in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.kafka.commit_metadata import CommittedOffset


class PlaceholderTopics:
    """Kafka keeps offsets only of topics that exist. An empty topic stands in for each one that is elsewhere, its name
    behind `prefix`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._elsewhere: set[str] = set()

    def add(self, topic: str) -> str:
        """The name of what stands in for `topic` from now on."""
        self._elsewhere.add(topic)
        return self.here(topic)

    def here(self, topic: str) -> str:
        return self._prefix + topic if topic in self._elsewhere else topic

    def placed(self, at: TopicPartition) -> TopicPartition:
        return TopicPartition(self.here(at.topic), at.partition)

    def there(self, at: TopicPartition) -> TopicPartition:
        """The partition that `at`, which is here, stands for; one that stands in is remembered."""
        if not self._prefix or not at.topic.startswith(self._prefix):
            return at
        topic = at.topic.removeprefix(self._prefix)
        self._elsewhere.add(topic)
        return TopicPartition(topic, at.partition)

    def position(self, at: TopicPartition, entry: CommittedOffset) -> Any:
        from confluent_kafka import TopicPartition as Position

        return Position(self.here(at.topic), at.partition, entry.offset, entry.metadata)
