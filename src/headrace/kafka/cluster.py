"""What the brokers say: topics, their ids, their first and next offsets."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, RetriableError
from headrace.planner import Log
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient

TIMEOUT = 10.0

# The settings that a Java client and librdkafka share by name and meaning; the rest concern reading alone.
_SHARED_PREFIXES = ("security.", "sasl.", "ssl.", "client.", "socket.", "reconnect.", "enable.ssl.")


def librdkafka_options(bootstrap: str, options: Mapping[str, str]) -> dict[str, str]:
    """The part of the user's options that the driver's own client needs."""
    shared = {name: value for name, value in options.items() if name.startswith(_SHARED_PREFIXES)}
    return {"client.id": "headrace", **shared, "bootstrap.servers": bootstrap}


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
        config: dict[str, Any] = {**librdkafka_options(bootstrap, options), "logger": _quiet_logger()}
        try:
            self._admin: AdminClient = AdminClient(config)
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
                topic_id=str(description.topic_id),
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
                    raise self._unreachable(error) from error
                missing.append(topic)
        if missing:
            raise self._missing(missing)
        return described

    def _missing(self, topics: list[str]) -> ConfigError:
        try:
            there = sorted(self._admin.list_topics(timeout=TIMEOUT).topics)
        except self._errors as error:
            raise self._unreachable(error) from error
        visible = [name for name in there if not name.startswith("__")]
        close = get_close_matches(topics[0], visible, n=1)
        named = ", ".join(visible[:10]) or "none"
        return ConfigError(
            f"no topic {', '.join(topics)} on {self._bootstrap}; topics there: {named}",
            hint=f"did you mean {close[0]}?" if close else "create the topic, or correct topics=[…]",
        )

    def _offsets(self, partitions: Iterable[TopicPartition], *, first: bool) -> dict[TopicPartition, int]:
        from confluent_kafka import TopicPartition as Position
        from confluent_kafka.admin import _listoffsets

        offset_spec: Any = _listoffsets.OffsetSpec
        spec = offset_spec.earliest() if first else offset_spec.latest()
        asked = {Position(at.topic, at.partition): spec for at in partitions}
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
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> RetriableError:
        reason = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
        return RetriableError(
            f"Kafka at {self._bootstrap} does not answer: {reason}",
            hint=f"headrace doctor --bootstrap {self._bootstrap}",
        )


def _quiet_logger() -> logging.Logger:
    """librdkafka writes each failed connection to stderr; the runner says it once, in its own words."""
    logger = logging.getLogger("headrace.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
