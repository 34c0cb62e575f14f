"""What the brokers say: topics, their ids, their first and next offsets."""

from __future__ import annotations

from difflib import get_close_matches
from time import monotonic
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, RetriableError
from headrace.planner import Log
from headrace.stores.librdkafka import librdkafka_options, quiet_logger
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from datetime import datetime

    from confluent_kafka.admin import AdminClient

TIMEOUT = 10.0
_NO_ID = "A" * 22
"""The id of every topic, of brokers without ids: zero, as 16 bytes in Base64."""


class Cluster:
    """One connection to one cluster. Every method raises RetriableError while no broker answers."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        from confluent_kafka import IsolationLevel, KafkaException
        from confluent_kafka.admin import AdminClient

        self._bootstrap = bootstrap
        # A reader that waits for committed records only must not be promised uncommitted ones.
        self._isolation = (
            IsolationLevel.READ_UNCOMMITTED
            if options.get("isolation.level") == "read_uncommitted"
            else IsolationLevel.READ_COMMITTED
        )
        self._errors = KafkaException
        self._config: dict[str, Any] = {**librdkafka_options(bootstrap, options), "logger": quiet_logger()}
        try:
            self._admin: AdminClient = AdminClient(self._config)
        except KafkaException as error:
            raise ConfigError(f"Kafka refuses these options: {error.args[0].str()}") from error

    def logs(self, topics: Sequence[str]) -> dict[str, Log]:
        """Id, beginnings and ends of each topic. ConfigError names topics that are not there."""
        described = self._describe(topics)
        partitions = [
            TopicPartition(topic, partition.id)
            for topic, description in described.items()
            for partition in description.partitions
        ]
        beginnings, ends = self._offsets(partitions, first=True), self._offsets(partitions, first=False)
        return {
            topic: Log(
                topic_id=topic_id(topic, str(description.topic_id)),
                beginnings={at: offset for at, offset in beginnings.items() if at.topic == topic},
                ends={at: offset for at, offset in ends.items() if at.topic == topic},
            )
            for topic, description in described.items()
        }

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset of each partition that a reader may see."""
        return self._offsets(partitions, first=False)

    def _describe(self, topics: Sequence[str]) -> dict[str, Any]:
        from confluent_kafka import KafkaError, TopicCollection

        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT)
        described: dict[str, Any] = {}
        missing: list[str] = []
        for topic, future in futures.items():
            try:
                described[topic] = future.result()
            except self._errors as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise unreachable(self._bootstrap, error) from error
                missing.append(topic)
        if missing:
            raise self._missing(missing)
        return described

    def _missing(self, topics: list[str]) -> ConfigError:
        try:
            there = sorted(self._admin.list_topics(timeout=TIMEOUT).topics)
        except self._errors as error:
            raise unreachable(self._bootstrap, error) from error
        visible = [name for name in there if not name.startswith("__")]
        close = get_close_matches(topics[0], visible, n=1)
        named = ", ".join(visible[:10]) or "none"
        return ConfigError(
            f"no topic {', '.join(topics)} on {self._bootstrap}; topics there: {named}",
            hint=f"did you mean {close[0]}?" if close else "create the topic, or correct topics=[…]",
        )

    def at_time(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int]:
        """The first offset at or after `time` of each partition; partitions without one are left out."""
        from confluent_kafka.admin import _listoffsets

        spec_of: Any = _listoffsets.OffsetSpec.for_timestamp
        found = self._ask(dict.fromkeys(partitions, spec_of(int(time.timestamp() * 1000))))
        return {at: offset for at, offset in found.items() if offset >= 0}

    def times(self, positions: Mapping[TopicPartition, int], timeout: float = 5.0) -> dict[TopicPartition, float]:
        """When the record at each position was produced, in seconds since the epoch, where it can be read in time."""
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as Position

        if not positions:
            return {}
        consumer = Consumer({**self._config, "group.id": "headrace-lag", "enable.auto.commit": False})
        try:
            consumer.assign([Position(at.topic, at.partition, offset) for at, offset in positions.items()])
            found: dict[TopicPartition, float] = {}
            deadline = monotonic() + timeout
            while len(found) < len(positions) and monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None or message.error():
                    continue
                at = TopicPartition(message.topic() or "", message.partition() or 0)
                found.setdefault(at, message.timestamp()[1] / 1000)
                consumer.pause([Position(at.topic, at.partition)])
            return found
        finally:
            consumer.close()

    def _offsets(self, partitions: Iterable[TopicPartition], *, first: bool) -> dict[TopicPartition, int]:
        from confluent_kafka.admin import _listoffsets

        spec: Any = _listoffsets.OffsetSpec
        return self._ask(dict.fromkeys(partitions, spec.earliest() if first else spec.latest()))

    def _ask(self, specs: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        from confluent_kafka import TopicPartition as Position

        asked = {Position(at.topic, at.partition): spec for at, spec in specs.items()}
        if not asked:
            return {}
        futures: dict[Any, Future[Any]] = self._admin.list_offsets(
            asked, isolation_level=self._isolation, request_timeout=TIMEOUT
        )
        try:
            return {
                TopicPartition(position.topic, position.partition): future.result().offset
                for position, future in futures.items()
            }
        except self._errors as error:
            raise unreachable(self._bootstrap, error) from error


def topic_id(topic: str, said: str) -> str:
    """What tells a topic from others: the id that a broker says, or the name where brokers are too old for ids."""
    return topic if said == _NO_ID else said


def unreachable(bootstrap: str, error: Exception) -> RetriableError:
    reason = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
    return RetriableError(
        f"Kafka at {bootstrap} does not answer: {reason}", hint=f"headrace doctor --bootstrap {bootstrap}"
    )
