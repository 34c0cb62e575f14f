"""Dead letters as records of a topic: the original key and value, with the error details in headers."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Position

from headrace.core.dead_letters import FORMAT, TEXT_FIELDS, TOO_LARGE, DeadLetter, RecordId
from headrace.core.format_version import KEY, refuse_newer
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka.admin import Admin
from headrace.kafka.client import Client
from headrace.kafka.headers import headers_of
from headrace.types import Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.kafka.headers import Headers

    Header = tuple[str, str | bytes | None]
    OnDelivery = Callable[[KafkaError | None, Message], None]

HEADER_PREFIX = "headrace."
"""The prefix of Headrace's header names; all other headers belong to the record."""
_DROPPED_UNTIL = f"{HEADER_PREFIX}settled"
_READER = f"{HEADER_PREFIX}reader"
_SECONDS = 30.0


class DeadLetterTopic:
    """A dead-letter topic on the cluster of the source. It has each dead letter at least once: after a crash before the
    offsets were committed, the same record is sent again.

    Single records of a topic cannot be deleted. To drop dead letters, Headrace writes a marker after them: a record
    with the offset up to which `reader` dropped this partition. The committed offsets of the group `reader` are only
    the start of the search for markers: brokers delete the offsets of a group without members after a week, but a
    marker is kept as long as the records before it.
    """

    def __init__(
        self, bootstrap: str, options: Mapping[str, str], topic: str, reader: str = "headrace-letters"
    ) -> None:
        self._client = Client(bootstrap, options)
        self._reader = reader
        self._last_read: dict[Range, int] = {}
        """The ranges that `read` scanned, each with its number of dead letters."""
        self.topic = topic

    def __repr__(self) -> str:
        return f"topic {self.topic} on {self._client.bootstrap}"

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Send dead letters and wait until all in-sync replicas have acknowledged every one.

        One that exceeds the topic's limit is sent without its bytes. Otherwise a bad record that just fits into the
        source topic, where it has no Headrace headers, would stop the pipeline permanently.
        """
        large = self._deliver(letters)
        large = self._deliver(large, alone=True)  # several records in one producer batch count as one
        if self._deliver([letter.without_bytes(reason=TOO_LARGE) for letter in large], alone=True):
            raise self._to_headrace_error(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    def _deliver(self, letters: Sequence[DeadLetter], *, alone: bool = False) -> list[DeadLetter]:
        """Send dead letters; return those that were too large, alone or in a producer batch."""
        large: list[DeadLetter] = []
        if not letters:
            return large
        with self._open_producer() as (producer, on_delivery):

            def check_size(letter: DeadLetter, error: KafkaError | None, message: Message) -> None:
                if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    large.append(letter)
                else:
                    on_delivery(error, message)

            for letter in letters:
                headers = [*letter.headers, *dead_letter_headers(letter)]
                _enqueue(producer, self.topic, letter.key, letter.value, headers, partial(check_size, letter))
                if alone:
                    producer.flush(_SECONDS)
        return large

    def send_back(
        self,
        letters: Sequence[DeadLetter],
        to: str | None = None,
        cluster_topic_name: Callable[[str], str] = lambda topic: topic,
    ) -> None:
        """Send the original records to their source topics, or to `to`."""
        with self._open_producer() as (producer, on_delivery):
            for letter in letters:
                topic = to or cluster_topic_name(letter.origin.topic)
                headers: list[Header] = [*letter.headers, (f"{HEADER_PREFIX}replay", f"{letter.origin}".encode())]
                _enqueue(producer, topic, letter.key, letter.value, headers, on_delivery)

    @contextmanager
    def _open_producer(self) -> Iterator[tuple[Producer, OnDelivery]]:
        """At the end of the block all records of the producer are acknowledged."""
        settings = {
            "compression.type": "lz4",  # a record that was compressed in its topic should fit again
            "enable.idempotence": True,
            "message.timeout.ms": int(_SECONDS * 1000),
            "message.max.bytes": 1_000_000_000,  # each topic has its own limit
        }
        producer = self._client.producer(settings)
        failures: list[tuple[KafkaError, str | None]] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append((error, message.topic()))

        with self._translating_errors():
            yield producer, on_delivery
        if producer.flush(_SECONDS) or failures:
            raise self._to_headrace_error(*(failures[0] if failures else (KafkaError(KafkaError._TIMED_OUT), None)))

    def read(self) -> list[DeadLetter]:
        """The dead letters that were not dropped, the oldest of each partition first."""
        with closing(self._client.consumer(self._reader, {"isolation.level": "read_committed"})) as consumer:
            found = {r: self._read_range(consumer, r) for r in self._unread(consumer)}
        self._last_read = {r: len(letters) for r, letters in found.items()}
        return [letter for letters in found.values() for letter in letters]

    def drop_read(self) -> None:
        """Drop the dead letters that the last `read` returned."""
        if not self._last_read:
            return
        reader = self._reader.encode()
        with self._open_producer() as (producer, on_delivery):
            for r, count in self._last_read.items():
                if count:
                    # With a key and a value, so that a compacted topic also keeps the newest marker.
                    marker: list[Header] = [(_READER, reader), (_DROPPED_UNTIL, str(r.until).encode())]
                    _enqueue(producer, self.topic, reader, b"", marker, on_delivery, r.at.partition)
        ends = [Position(self.topic, r.at.partition, r.until) for r in self._last_read]
        with closing(self._client.consumer(self._reader)) as consumer, self._translating_errors():
            consumer.commit(offsets=ends, asynchronous=False)

    def _unread(self, consumer: Any) -> list[Range]:
        """The range after the committed offset of each partition."""
        admin = Admin(self._client, _SECONDS)
        described = admin.describe_topics([self.topic]).get(self.topic)
        if described is None:
            raise self._missing_topic_error(self.topic)
        partitions = [TopicPartition(self.topic, partition.id) for partition in described.partitions]
        committed = self._client.committed(consumer, partitions, _SECONDS, f"the group {self._reader}") or {}
        first = admin.offsets(dict.fromkeys(partitions, "earliest"), committed=False)
        end = admin.offsets(dict.fromkeys(partitions, "latest"), committed=False)
        starts = {at: max(first[at], committed[at].offset) if at in committed else first[at] for at in partitions}
        return [Range(at, start, end[at]) for at, start in sorted(starts.items()) if start < end[at]]

    def _read_range(self, consumer: Any, unread: Range) -> list[DeadLetter]:
        """The dead letters after the newest marker."""
        letters, dropped = [], 0
        for message in self._messages(consumer, unread):
            headers = headers_of(message)
            if (letter := read_dead_letter(message, headers)) is not None:
                letters.append((message.offset() or 0, letter))
            else:  # not in a dead letter: any program may choose the headers of its record
                dropped = max(dropped, self._dropped_until(message, headers))
        return [letter for offset, letter in letters if offset >= dropped]

    def _dropped_until(self, message: Message, headers: Headers) -> int:
        """The offset in a marker of this reader; 0 for any other record."""
        fields = dict(headers)
        if fields.get(_READER) != self._reader.encode():
            return 0
        # A valid marker comes after the offset in it. Headrace did not write any other.
        until = _parse_number(fields.get(_DROPPED_UNTIL))
        return until if until is not None and until <= (message.offset() or 0) else 0

    def _messages(self, consumer: Any, unread: Range) -> Iterator[Message]:
        position = Position(self.topic, unread.at.partition, unread.start)
        offset, last_received = unread.start, time.monotonic()
        with self._translating_errors():
            consumer.assign([position])
            while offset < unread.until:
                message = consumer.poll(1.0)
                if message is None:
                    # The last offsets may have no record: then only the position shows that they were read.
                    (reached,) = consumer.position([position])
                    if reached.offset <= offset and time.monotonic() - last_received > _SECONDS:
                        raise RetriableError(
                            f"dead letters, {self}: no record received for {_SECONDS:g} s",
                            hint=f"headrace doctor --bootstrap {self._client.bootstrap}",
                        )
                    offset = max(offset, reached.offset)
                    continue
                if (error := message.error()) is not None:
                    raise self._to_headrace_error(error)
                offset, last_received = (message.offset() or 0) + 1, time.monotonic()
                if offset <= unread.until:
                    yield message

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._to_headrace_error(error.args[0]) from error

    def _to_headrace_error(self, error: KafkaError, topic: str | None = None) -> HeadraceError:
        topic = topic or self.topic
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return self._missing_topic_error(topic)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return ConfigError(
                f"a record is larger than topic {topic} on {self._client.bootstrap} allows: {error.str()}",
                hint="raise max.message.bytes of the topic",
            )
        return self._client.to_headrace_error(error, f"the dead letters in topic {topic}")

    def _missing_topic_error(self, topic: str) -> ConfigError:
        return ConfigError(f"there is no topic {topic} on {self._client.bootstrap}", hint="create it first")


def _enqueue(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: list[Header],
    on_delivery: OnDelivery,
    partition: int | None = None,
) -> None:
    options: Any = {} if partition is None else {"partition": partition}
    while True:
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=on_delivery, **options)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def dead_letter_headers(letter: DeadLetter) -> list[Header]:
    fields = {
        "topic": letter.origin.topic,
        "partition": str(letter.origin.partition),
        "offset": str(letter.origin.offset),
        "timestamp": "" if letter.timestamp is None else letter.timestamp.isoformat(),
        **{name: getattr(letter, name) for name in TEXT_FIELDS},
        KEY: str(FORMAT),
    }
    return [(HEADER_PREFIX + name, value.encode()) for name, value in fields.items()]


def read_dead_letter(message: Message, headers: Headers) -> DeadLetter | None:
    """None for a record that is not a dead letter: other programs may write to the topic, too."""
    own = {name: value or b"" for name, value in headers if name.startswith(HEADER_PREFIX)}
    fields = {name.removeprefix(HEADER_PREFIX): value for name, value in own.items()}
    partition, offset = _parse_number(fields.get("partition")), _parse_number(fields.get("offset"))
    if not {"topic", "error"} <= set(fields) or partition is None or offset is None:
        return None
    origin = RecordId(_text(fields["topic"]), partition, offset)
    refuse_newer(_parse_number(fields.get(KEY)) or 1, FORMAT, f"the dead letter of {origin} in topic {message.topic()}")
    return DeadLetter(
        origin,
        _parse_time(_text(fields.get("timestamp", b""))),
        _as_bytes(message.key()),
        _as_bytes(message.value()),
        tuple((name, value) for name, value in headers if not name.startswith(HEADER_PREFIX)),
        **{name: _text(fields.get(name, b"")) for name in TEXT_FIELDS},
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _parse_number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
