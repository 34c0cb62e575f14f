"""Dead letters as records of a topic: the original key and value, what is known about them in the headers."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from headrace.core.dead_letters import FORMAT, TEXT_FIELDS, TOO_LARGE, DeadLetter, RecordId
from headrace.core.format_version import KEY, refuse_newer
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka.connection_errors import probe_cluster
from headrace.kafka.headers import headers_of
from headrace.kafka.librdkafka import librdkafka_options, quiet_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.kafka.headers import Headers

    Header = tuple[str, str | bytes | None]
    Record = tuple[str, bytes | None, bytes | None, list[Header]]
    Heard = Callable[[KafkaError | None, Message], None]

OURS = "headrace."
"""What the names of our headers begin with; the others are the record's own."""
_SETTLED = f"{OURS}settled"
_READER = f"{OURS}reader"
_SECONDS = 30.0
_NOT_YET = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


class DeadLetterTopic:
    """On the cluster of the source. A letter is there at least once: a crash before the offsets moved sends it again,
    with the same origin in its headers.

    A topic lets go of nothing by itself. What was dealt with lies before the newest mark of `reader` in its partition:
    a record that says up to where. The offsets of its group only say where to begin to look: brokers forget those of a
    group that nobody joins, after a week, and a mark stays as long as anything that lies before it.
    """

    def __init__(
        self, bootstrap: str, options: Mapping[str, str], topic: str, reader: str = "headrace-letters"
    ) -> None:
        self._bootstrap = bootstrap
        self._options = librdkafka_options(bootstrap, options)
        self._reader = reader
        self._seen: dict[int, int] = {}
        self._full: set[int] = set()
        self.topic = topic

    def __repr__(self) -> str:
        return f"topic {self.topic} on {self._bootstrap}"

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """On return every one of `letters` is acknowledged by all in-sync replicas.

        One that is larger than the topic takes goes without its bytes. Else a bad record that just fits the source,
        where it has no headers of ours, would stop the pipeline for ever.
        """
        large = self._deliver(letters)
        large = self._deliver(large, alone=True)  # several that are sent together count as one record
        if self._deliver([letter.without_bytes(reason=TOO_LARGE) for letter in large], alone=True):
            raise self._ours(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    def _deliver(self, letters: Sequence[DeadLetter], *, alone: bool = False) -> list[DeadLetter]:
        """Send them; those that were too large, by themselves or with others, are returned."""
        large: list[DeadLetter] = []
        if not letters:
            return large
        with self._producing() as (producer, heard):

            def noted(letter: DeadLetter, error: KafkaError | None, message: Message) -> None:
                if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    large.append(letter)
                else:
                    heard(error, message)

            for letter in letters:
                headers = [*letter.headers, *dead_letter_headers(letter)]
                _enqueue(producer, self.topic, letter.key, letter.value, headers, partial(noted, letter))
                if alone:
                    producer.flush(_SECONDS)
        return large

    def send_back(
        self,
        letters: Sequence[DeadLetter],
        to: str | None = None,
        cluster_topic_name: Callable[[str], str] = lambda topic: topic,
    ) -> None:
        """The records as they were, into the topics they came from, or into `to`."""
        self.produce(
            (
                to or cluster_topic_name(letter.origin.topic),
                letter.key,
                letter.value,
                [*letter.headers, (f"{OURS}replay", f"{letter.origin}".encode())],
            )
            for letter in letters
        )

    def produce(self, records: Iterable[Record]) -> None:
        with self._producing() as (producer, heard):
            for topic, key, value, headers in records:
                _enqueue(producer, topic, key, value, headers, heard)

    @contextmanager
    def _producing(self) -> Iterator[tuple[Producer, Heard]]:
        """At the end of the block all that was given to the producer is acknowledged."""
        durable = {
            "enable.idempotence": True,
            "message.timeout.ms": int(_SECONDS * 1000),
            "message.max.bytes": 1_000_000_000,  # each topic has a limit of its own
        }
        # What came compressed should not be refused for its size now.
        producer = Producer({"compression.type": "lz4", **self._options, **durable, "logger": quiet_logger()})
        failures: list[tuple[KafkaError, str | None]] = []

        def heard(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append((error, message.topic()))

        try:
            yield producer, heard
        except KafkaException as error:
            raise self._ours(error.args[0]) from error
        if producer.flush(_SECONDS) or failures:
            raise self._ours(*(failures[0] if failures else (KafkaError(KafkaError._TIMED_OUT), None)))

    def read(self) -> list[DeadLetter]:
        """The letters that are not dealt with yet, oldest first in each partition."""
        probe_cluster(self._bootstrap, self._options, _SECONDS)  # a refused login shows as a long silence otherwise
        with closing(self._consumer()) as consumer:
            try:
                left = self._left(consumer)
                self._seen = {place.partition: end for place, end in left}
                found = {place.partition: self._not_settled(consumer, place, end) for place, end in left}
            except KafkaException as error:
                raise self._ours(error.args[0]) from error
        self._full = {partition for partition, letters in found.items() if letters}
        return [letter for letters in found.values() for letter in letters]

    def settle(self) -> None:
        """What the last `read` saw is dealt with."""
        if not self._seen:
            return
        with self._producing() as (producer, heard):
            for partition in self._full:
                # With a key and a value: a topic that is compacted keeps the newest mark, too.
                mark: list[Header] = [(_READER, self._reader.encode()), (_SETTLED, str(self._seen[partition]).encode())]
                _enqueue(producer, self.topic, self._reader.encode(), b"", mark, heard, partition)
        with closing(self._consumer()) as consumer:
            try:
                ends = [Place(self.topic, partition, end) for partition, end in self._seen.items()]
                consumer.commit(offsets=ends, asynchronous=False)
            except KafkaException as error:
                raise self._ours(error.args[0]) from error

    def _consumer(self) -> Any:
        ours = {"group.id": self._reader, "enable.auto.commit": False, "isolation.level": "read_committed"}
        return Consumer({**self._options, **ours, "logger": quiet_logger()})

    def _left(self, consumer: Consumer) -> list[tuple[Place, int]]:
        """Where to begin in each partition that has something, and its end."""
        found = consumer.list_topics(self.topic, timeout=_SECONDS).topics[self.topic]
        if found.error is not None:
            raise self._ours(found.error)
        places = _committed(consumer, [Place(self.topic, number) for number in found.partitions])
        left = []
        for place in places:
            first, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
            start = first if place.offset == OFFSET_INVALID else max(first, place.offset)
            if start < end:
                left.append((Place(self.topic, place.partition, start), end))
        return left

    def _not_settled(self, consumer: Consumer, place: Place, end: int) -> list[DeadLetter]:
        letters, settled = [], 0
        for message in self._until(consumer, place, end):
            given = headers_of(message)
            if (letter := read_dead_letter(message, given)) is not None:
                letters.append((message.offset() or 0, letter))
            else:  # not of a letter: it has the headers of its record, and those may say anything
                settled = max(settled, self._mark(message, given))
        return [letter for offset, letter in letters if offset >= settled]

    def _mark(self, message: Message, given: Headers) -> int:
        """Up to where everything was dealt with, if that is what this record says, and to us; else 0."""
        about = dict(given)
        if about.get(_READER) != self._reader.encode():
            return 0
        # A mark lies behind what it speaks of: any other was not made by us.
        settled = _number(about.get(_SETTLED))
        return settled if settled is not None and settled <= (message.offset() or 0) else 0

    def _until(self, consumer: Consumer, place: Place, end: int) -> Iterator[Message]:
        consumer.assign([place])
        at, answered = place.offset, time.monotonic()
        while at < end:
            message = consumer.poll(1.0)
            if message is None:
                # The last offsets may hold no record: the position passes them, and no message tells.
                (position,) = consumer.position([place])
                if position.offset <= at and time.monotonic() - answered > _SECONDS:
                    raise self._ours(KafkaError(KafkaError._TIMED_OUT, f"nothing came for {_SECONDS:g} s"))
                at = max(at, position.offset)
                continue
            if (error := message.error()) is not None:
                raise self._ours(error)
            at, answered = (message.offset() or 0) + 1, time.monotonic()
            if at <= end:
                yield message

    def _ours(self, error: KafkaError, topic: str | None = None) -> HeadraceError:
        place = f"topic {topic or self.topic} on {self._bootstrap}"
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return ConfigError(f"there is no {place}", hint="create it first")
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return ConfigError(f"no right to the {place}", hint="grant it to this user")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return ConfigError(
                f"a record is larger than the {place} allows: {error.str()}",
                hint="raise max.message.bytes of the topic",
            )
        return RetriableError(
            f"dead letters, {place}: {error.str()}", hint=f"headrace doctor --bootstrap {self._bootstrap}"
        )


def _committed(consumer: Consumer, places: list[Place]) -> list[Place]:
    """As the consumer's, but a group that has just found its coordinator is asked again."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return consumer.committed(places, timeout=_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                raise
            consumer.poll(0.1)


def _enqueue(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: list[Header],
    heard: Heard,
    partition: int | None = None,
) -> None:
    where: Any = {} if partition is None else {"partition": partition}
    while True:
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=heard, **where)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def dead_letter_headers(letter: DeadLetter) -> list[Header]:
    about = {
        "topic": letter.origin.topic,
        "partition": str(letter.origin.partition),
        "offset": str(letter.origin.offset),
        "timestamp": "" if letter.timestamp is None else letter.timestamp.isoformat(),
        **{name: getattr(letter, name) for name in TEXT_FIELDS},
        KEY: str(FORMAT),
    }
    return [(OURS + name, value.encode()) for name, value in about.items()]


def read_dead_letter(message: Message, given: Headers) -> DeadLetter | None:
    """None for a record that is none of ours: anybody may write anything into the topic."""
    about: dict[str, bytes] = {name.removeprefix(OURS): value or b"" for name, value in given if name.startswith(OURS)}
    partition, offset = _number(about.get("partition")), _number(about.get("offset"))
    if not {"topic", "error"} <= set(about) or partition is None or offset is None:
        return None
    origin = RecordId(_text(about["topic"]), partition, offset)
    refuse_newer(_number(about.get(KEY)) or 1, FORMAT, f"the dead letter of {origin} in topic {message.topic()}")
    return DeadLetter(
        origin,
        _moment(_text(about.get("timestamp", b""))),
        _raw(message.key()),
        _raw(message.value()),
        tuple((name, value) for name, value in given if not name.startswith(OURS)),
        **{name: _text(about.get(name, b"")) for name in TEXT_FIELDS},
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
