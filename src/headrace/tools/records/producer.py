"""Sends records to one topic, and reports each as acknowledged, or as failed with the reason."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.kafka.admin import Admin
from headrace.kafka.headers import headers_of
from headrace.tools.records.record import Record
from headrace.tools.topics import describe_topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError

    from headrace.kafka.client import Client
    from headrace.kafka.headers import Headers

_QUEUE_FULL_SECONDS = 0.05
_MAX_TIMEOUT_SECONDS = 2_147_483
"""The upper bound of durations: the client counts milliseconds in 31 bits."""
_NOW = 0
"""A timestamp that librdkafka replaces with the current time."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How records are sent. A record fails after `timeout` seconds; a batch is sent after `linger` milliseconds, or
    when it has `batch_size` bytes. None leaves a setting to the user's options.
    """

    acks: str | None = None
    compression: str | None = None
    timeout: float = 30.0
    linger: float | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= _MAX_TIMEOUT_SECONDS:
            raise ConfigError(
                f"--timeout: expected seconds above 0 and up to {_MAX_TIMEOUT_SECONDS:,}, got {self.timeout:g}",
                hint="--timeout 30",
            )

    def required(self) -> dict[str, Any]:
        options = {
            "acks": self.acks,
            "enable.idempotence": None if self.acks is None else self.acks == "all",
            "compression.type": self.compression,
            "linger.ms": self.linger,
            "batch.size": self.batch_size,
            "message.timeout.ms": max(1, int(self.timeout * 1000)),
        }
        return {name: value for name, value in options.items() if value is not None}

    def defaults(self, acks: str, max_bytes: int) -> dict[str, Any]:
        return {
            "acks": "all",
            # In order and without duplicates, also if a batch is sent again.
            "enable.idempotence": acks in ("all", "-1"),
            "linger.ms": 5.0,
            # The partition of a key is the one that Java's producer would choose.
            "partitioner": "murmur2_random",
            # Spread records without a key one by one, not batch by batch.
            "sticky.partitioning.linger.ms": 0,
            # The limit of the topic decides; a smaller one here would reject records that the topic accepts.
            "message.max.bytes": max_bytes,
        }


class TopicProducer:
    """Sends records to one topic, which must exist. Calls `on_acknowledged` or `on_failed` for each; with `acks=0` all
    count as acknowledged, and `wants_acknowledgement` is False.

    It does not retry: librdkafka does so until `timeout`.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        settings: ProducerSettings,
        on_acknowledged: Callable[[Record], None] | None = None,
        on_failed: Callable[[Record, str], None] = lambda record, reason: None,
    ) -> None:
        from confluent_kafka import Producer

        (self.topic,) = describe_topics(Admin(client, settings.timeout), [topic])
        self.acknowledged = 0
        self.failures = 0
        self._on_acknowledged = on_acknowledged
        self._on_failed = on_failed
        self._timeout = settings.timeout
        # The client accepts 1,000 to 1,000,000,000.
        max_bytes = min(max(int(self.topic.setting("max.message.bytes") or 1_048_588), 1000), 1_000_000_000)
        acks = settings.acks or client.tuning.get("acks", "all")
        self.wants_acknowledgement = acks != "0"
        self._producer = client.build_tuned(Producer, settings.required(), settings.defaults(acks, max_bytes))
        self._began = time.monotonic()

    @property
    def rate(self) -> float:
        """Acknowledged records per second."""
        return self.acknowledged / max(time.monotonic() - self._began, 1e-9)

    def send(self, record: Record) -> None:
        """Send a record to this topic, and to its partition if it has one. Its topic and offset are ignored."""
        from confluent_kafka import KafkaException

        if record.timestamp == _NOW:
            self.refuse(record, "its timestamp is 0, the first moment of 1970, which the client would take as now")
            return
        extra: dict[str, Any] = {}
        if record.partition is not None:
            extra["partition"] = record.partition
        if record.timestamp is not None:
            extra["timestamp"] = record.timestamp
        if record.headers:
            extra["headers"] = list(record.headers)
        # A delivery report has the key and the value. Bind only what it lacks: the whole record would double memory.
        on_delivery = partial(self._on_delivery, record.timestamp, record.headers)
        while True:
            try:
                self._producer.produce(self.topic.name, record.value, record.key, on_delivery=on_delivery, **extra)
            except BufferError:
                self._producer.poll(_QUEUE_FULL_SECONDS)
                continue
            except KafkaException as error:  # too large, or no such partition: detected before it is sent
                self.refuse(record, error.args[0].str())
            self._producer.poll(0)
            return

    def refuse(self, record: Record, reason: str) -> None:
        """Count a record that cannot be sent as failed."""
        self.failures += 1
        self._on_failed(record, reason)

    def wait(self, seconds: float) -> None:
        """Wait, and handle delivery reports."""
        self._producer.poll(seconds)

    def finish(self) -> None:
        """Wait until every record is acknowledged or has failed."""
        self._producer.flush(self._timeout + 1)
        if len(self._producer):
            self._producer.purge()
            self._producer.flush(1)

    def _on_delivery(self, timestamp: int | None, headers: Headers, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
            if self._on_acknowledged is not None:
                self._on_acknowledged(as_record(message))
        else:
            kind = None if timestamp is None else "create"
            record = replace(as_record(message), timestamp=timestamp, timestamp_type=kind, headers=headers)
            self.refuse(record, error.str())


def as_record(message: Any) -> Record:
    """The message of a broker, or of a delivery report, as a record."""
    kind, at = message.timestamp()
    offset, partition = message.offset(), message.partition()
    return Record(
        message.topic(),
        None if partition is None or partition < 0 else partition,
        None if offset is None or offset < 0 else offset,
        at if kind else None,
        {1: "create", 2: "append"}.get(kind),
        message.key(),
        message.value(),
        headers_of(message),
    )
