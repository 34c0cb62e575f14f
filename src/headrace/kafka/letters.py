"""Dead letters as records of a topic: the original key and value, what is known about them in the headers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka.cluster import librdkafka_options
from headrace.letters import Letter, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OURS = "headrace."
"""What the names of our headers begin with; the others are the record's own."""
_SECONDS = 30.0


class LetterTopic:
    """On the cluster of the source. A letter is there at least once: a crash before the offsets moved sends it again,
    with the same origin in its headers."""

    def __init__(self, bootstrap: str, options: Mapping[str, str], topic: str) -> None:
        self._bootstrap = bootstrap
        self._options = librdkafka_options(bootstrap, options)
        self.topic = topic

    def send(self, letters: Sequence[Letter]) -> None:
        """On return every one of `letters` is acknowledged by all in-sync replicas."""
        producer = Producer({**self._options, "enable.idempotence": True, "message.timeout.ms": int(_SECONDS * 1000)})
        failures: list[KafkaError] = []

        def heard(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        for letter in letters:
            self._produce(producer, letter, heard)
        if producer.flush(_SECONDS) or failures:
            raise self._ours(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))

    def _produce(self, producer: Producer, letter: Letter, heard: Any) -> None:
        headers: list[tuple[str, str | bytes | None]] = [*letter.headers, *_about(letter)]
        while True:
            try:
                producer.produce(self.topic, letter.value, letter.key, headers=headers, on_delivery=heard)
            except BufferError:
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def read(self) -> Iterator[tuple[Letter, Origin]]:
        """Every letter there is now, oldest first, with where it lies itself."""
        consumer = Consumer({**self._options, "group.id": "headrace-dead-letters", "enable.auto.commit": False})
        try:
            found = consumer.list_topics(self.topic, timeout=_SECONDS).topics[self.topic]
            if found.error is not None:
                raise self._ours(found.error)
            for partition in found.partitions:
                place = Place(self.topic, partition)
                first, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
                consumer.assign([Place(self.topic, partition, first)])
                yield from self._until(consumer, place, end)
        except KafkaException as error:
            raise self._ours(error.args[0]) from error
        finally:
            consumer.close()

    def _until(self, consumer: Consumer, place: Place, end: int) -> Iterator[tuple[Letter, Origin]]:
        while True:
            # The position, not the last record seen: the last offsets may hold no record.
            (at,) = consumer.position([place])
            if at.offset >= end or (at.offset < 0 and end == 0):
                return
            message = consumer.poll(1.0)
            if message is None:
                if consumer.get_watermark_offsets(place, timeout=_SECONDS)[0] >= end:
                    return
                continue
            if (error := message.error()) is not None:
                raise self._ours(error)
            if (message.offset() or 0) >= end:
                return
            if (letter := _letter(message)) is not None:
                yield letter, Origin(self.topic, message.partition() or 0, message.offset() or 0)

    def _ours(self, error: KafkaError) -> HeadraceError:
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return ConfigError(
                f"the topic for dead letters, {self.topic}, is not on {self._bootstrap}", hint="create it first"
            )
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return ConfigError(f"no right to the topic for dead letters, {self.topic}", hint="grant it to this user")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return ConfigError(
                f"a dead letter is larger than {self.topic} allows: {error.str()}",
                hint="raise max.message.bytes of the topic, and message.max.bytes in the source's options",
            )
        return RetriableError(
            f"dead letters in {self.topic}: {error.str()}", hint=f"headrace doctor --bootstrap {self._bootstrap}"
        )


def _about(letter: Letter) -> list[tuple[str, bytes]]:
    at = "" if letter.timestamp is None else letter.timestamp.isoformat()
    about = {
        "topic": letter.origin.topic,
        "partition": str(letter.origin.partition),
        "offset": str(letter.origin.offset),
        "timestamp": at,
        "error": letter.error,
        "place": letter.place,
    }
    return [(OURS + name, value.encode()) for name, value in about.items()]


def _letter(message: Message) -> Letter | None:
    """None for a record that is none of ours."""
    given: Any = message.headers() or []
    headers: list[tuple[str, bytes | None]] = [(name, _raw(value)) for name, value in given]
    about = {name.removeprefix(OURS): (value or b"").decode() for name, value in headers if name.startswith(OURS)}
    if not {"topic", "partition", "offset", "error"} <= set(about):
        return None
    kind, _ = message.timestamp()
    at = about.get("timestamp")
    return Letter(
        Origin(about["topic"], int(about["partition"]), int(about["offset"])),
        datetime.fromisoformat(at) if at and kind != TIMESTAMP_NOT_AVAILABLE else None,
        _raw(message.key()),
        _raw(message.value()),
        tuple((name, value) for name, value in headers if not name.startswith(OURS)),
        about["error"],
        about.get("place", ""),
    )


def _raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
