"""Checks records and sends them by topic in an open transaction, as many at a time as the producer's queue accepts.

There are no delivery callbacks: a record that was not stored fails the commit, and librdkafka would raise a fatal error
out of the callback.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.records import HEADERS, PARTITION, TIMESTAMP, TOPIC, messages, origin_of
from headrace.connectors.kafka.target_topics import TargetTopics
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.errors import ConfigError, RetriableError
from headrace.spark import tasks
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.connectors.kafka.records import TopicLimits
    from headrace.connectors.kafka.target_topics import AllowedTopics, NewTopics
    from headrace.kafka.client import Client
    from headrace.types import TopicPartition

_QUEUE_FULL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """The target of records, pickled for the executors. `topic` and its `limits` are None if rows name their topics."""

    sink: str
    client: Client
    producer_settings: Mapping[str, Any] = field(repr=False)
    topic: str | None = None
    limits: TopicLimits | None = None
    new: NewTopics | None = None
    allowed: AllowedTopics | None = None

    @property
    def seconds(self) -> float:
        """The transaction timeout in seconds."""
        return int(self.producer_settings["transaction.timeout.ms"]) / 1000

    @property
    def _topic_rules(self) -> tuple[object, ...]:
        """Distinguishes sinks of one name that may create topics, because a Python worker serves many runs."""
        if self.allowed is None:
            return (repr(self.new),)
        return repr(self.new), self.allowed.names, self.allowed.pattern, self.allowed.limit

    def flush(self, producer: Any) -> None:
        if left := producer.flush(self.seconds):
            raise RetriableError(
                f"Kafka at {self.client.bootstrap}: {counted(left, 'record')} not stored within {self.seconds:g} s",
                hint='options={"transaction.timeout.ms": "…"} gives a transaction more time',
            )

    @property
    def topics(self) -> TargetTopics:
        """The topics that rows name; cached in this Python worker."""
        create = lambda: TargetTopics(self.client, self.new, self.allowed)  # noqa: E731
        key = (self.client.bootstrap, "topics", self.sink, *self._topic_rules)
        known: TargetTopics = tasks.worker_cached(key, create, lambda _: None)
        return known

    def limits_for(self, topic: str) -> TopicLimits | None:
        if topic == self.topic:
            return self.limits
        limits, batch_size = self.topics.limits(topic), int(self.producer_settings["batch.size"])
        if limits is not None and limits.max_bytes < batch_size:
            raise ConfigError(
                f"{topic} accepts {limits.max_bytes:,} bytes at once, got batch.size={batch_size}",
                hint=f'options={{"batch.size": "{limits.max_bytes}"}}',
            )
        return limits


def check_rows(target: TopicTarget, records: Any) -> Iterator[tuple[str, Any, list[tuple[int, str]]]]:
    """The records of each topic, and the row number and reason of each record that its topic rejects."""
    for topic, own in _by_topic(target, records):
        reason = f"{TOPIC} is NULL" if topic is None else None
        if topic is not None and target.allowed is not None:
            reason = target.allowed.rejection_reason(topic)
        limits = target.limits_for(topic) if topic is not None and reason is None else None
        if topic is None or limits is None:
            reason = reason or target.topics.reason
            yield topic or "", own, [(row, reason) for row in range(len(own))]
        else:
            yield topic, own, sorted(dict(limits.rejections(own)).items())


def _by_topic(target: TopicTarget, records: Any) -> Iterator[tuple[str | None, Any]]:
    import pyarrow.compute as pc

    if target.topic is not None:
        yield target.topic, records
        return
    column = records.column(TOPIC)
    for topic in column.unique().to_pylist():
        yield topic, records.filter(pc.is_null(column) if topic is None else pc.equal(column, topic))


def send(producer: Any, target: TopicTarget, records: Any, at: TopicPartition) -> int:
    """Send an Arrow batch of records, all from `at`, to the producer; BadRecord if a topic rejects one."""
    for topic, own, rejected in check_rows(target, records):
        for row, reason in rejected:
            RejectedRows(target.sink, limit=None).add(origin_of(own, row, at), reason)
        enqueue(producer, target, topic, own)
    return len(records)


def enqueue(producer: Any, target: TopicTarget, topic: str, records: Any) -> None:
    waiting = messages(records)
    names = set(records.schema.names)
    if names & {HEADERS, TIMESTAMP}:
        add = _produce_each
    else:
        add = _produce_by_partition if PARTITION in names else _produce_batch
    deadline = time.monotonic() + target.seconds
    while waiting := add(producer, topic, waiting):
        if time.monotonic() > deadline:
            raise RetriableError(
                f"Kafka at {target.client.bootstrap} accepts no records of {topic} for {target.seconds:g} s"
            )
        producer.poll(_QUEUE_FULL_SECONDS)
    producer.poll(0)


def _produce_batch(
    producer: Any, topic: str, waiting: list[dict[str, Any]], partition: int | None = None
) -> list[dict[str, Any]]:
    """Return the records that did not fit into the queue."""
    from confluent_kafka import KafkaError, KafkaException

    options = {} if partition is None else {"partition": partition}
    if producer.produce_batch(topic, waiting, **options) == len(waiting):
        return []
    left = [message for message in waiting if "_error" in message]
    for message in left:
        error = message.pop("_error")
        if error.code() != KafkaError._QUEUE_FULL:
            raise KafkaException(error)
    return left


def _produce_by_partition(producer: Any, topic: str, waiting: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As `_produce_batch`, with one call per partition: `produce_batch` ignores the partition of a single message."""
    groups: dict[int | None, list[dict[str, Any]]] = {}
    for message in waiting:
        groups.setdefault(message.get("partition"), []).append(message)
    return [left for partition, group in groups.items() for left in _produce_batch(producer, topic, group, partition)]


def _produce_each(producer: Any, topic: str, waiting: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As `_produce_batch`, for records with headers or timestamps, which `produce_batch` does not support."""
    for number, message in enumerate(waiting):
        try:
            producer.produce(topic, **message)
        except BufferError:
            return waiting[number:]
    return []
