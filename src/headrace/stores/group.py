"""A consumer group that nobody joins: its offsets read when they are settled, and committed in transactions."""

from __future__ import annotations

import logging
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.stores.shares import Entry
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from confluent_kafka import KafkaError

_TIMEOUT = 10.0
_PATIENCE = 2.5 * _TIMEOUT  # with a transaction of several requests
_UNSETTLED_SECONDS = 2.0  # a living run settles within milliseconds
_ONE_REQUEST = 2000  # partitions; some 500 KB where a broker takes 1 MB
# The settings that a Java client and librdkafka share by name and meaning; the rest concern reading alone.
_SHARED_PREFIXES = ("security.", "sasl.", "ssl.", "client.", "socket.", "reconnect.", "enable.ssl.")
_REFUSED = {
    "TOPIC_AUTHORIZATION_FAILED": "grant this user READ on the topics",
    "GROUP_AUTHORIZATION_FAILED": "grant this user READ on the group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "grant this user WRITE on the transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "grant this user IDEMPOTENT_WRITE on the cluster",
    "SASL_AUTHENTICATION_FAILED": "correct the sasl.* options",
    "UNSUPPORTED_SASL_MECHANISM": "correct the option sasl.mechanism",
    "_AUTHENTICATION": "correct the sasl.* options",
    "_SSL": "correct the ssl.* options",
    "INVALID_GROUP_ID": "choose another group",
    "OFFSET_METADATA_TOO_LARGE": "raise the broker's offset.metadata.max.bytes; 4096 is its default",
    "UNSUPPORTED_VERSION": "the broker must be Kafka 2.5 or later",
    "_UNSUPPORTED_FEATURE": "the broker must be Kafka 2.5 or later",
}
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"}


class Topic(NamedTuple):
    id: str
    partitions: frozenset[int]


class Group:
    """The border to the driver: every method raises ConfigError or RetriableError, and waits some seconds at most.

    `claim` makes this handle the only one whose transactions commit, until somebody else claims: it settles what
    others had in hand (commits it if it was decided, else aborts it) and fences them for good.
    `token` is another object after each claim and each commit, and None without a claim.

    Offsets are asked of a consumer that never joins. The admin client would list a group without being told its
    partitions, but it takes the process down when the coordinator moves while it asks (librdkafka #5040, #5397), and
    it leaves out partitions whose first commit is not settled yet, where a consumer waits.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, str], name: str) -> None:
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka.admin import AdminClient

        self.name = name
        self.token: object | None = None
        self._bootstrap = bootstrap
        self._errors = KafkaException
        self._complaint: KafkaError | None = None
        shared = {key: value for key, value in options.items() if key.startswith(_SHARED_PREFIXES)}
        self._config: dict[str, Any] = {
            "client.id": "headrace",
            "socket.timeout.ms": int(_TIMEOUT * 1000),
            "reconnect.backoff.max.ms": 1000,  # 10 s by default: a broker that is back should be found
            "retry.backoff.ms": 1,  # between two looks at an offset that is not settled yet
            "retry.backoff.max.ms": 5,
            **shared,
            "bootstrap.servers": bootstrap,
            "logger": _quiet_logger(),
            "error_cb": self._complain,
        }
        self._producer: Any = None
        try:
            self._admin: Any = AdminClient(self._config)
            self._consumer: Any = Consumer({**self._config, "group.id": name, "enable.auto.commit": False})
        except KafkaException as error:
            raise ConfigError(f"Kafka refuses these options: {error.args[0].str()}") from error
        self._membership = self._consumer.consumer_group_metadata()  # of nobody

    def close(self) -> None:
        self.release()
        self._consumer.close()

    def release(self) -> None:
        """Give up the claim, for one's own part."""
        self._producer = self.token = None

    def cluster_id(self) -> str:
        return str(self._metadata("__consumer_offsets").cluster_id)

    def partitions(self) -> list[TopicPartition]:
        """All there are in the cluster: the group may hold any of them."""
        topics = self._metadata().topics
        return [TopicPartition(topic, number) for topic, found in topics.items() for number in found.partitions]

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that exist."""
        from confluent_kafka import TopicCollection

        found: dict[str, Topic] = {}
        asked = sorted(names)
        futures = self._admin.describe_topics(TopicCollection(asked), request_timeout=_TIMEOUT) if asked else {}
        for name, future in futures.items():
            try:
                described = future.result()
            except self._errors as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise self._translated(error) from error
            else:
                found[name] = Topic(str(described.topic_id), frozenset(p.id for p in described.partitions))
        return found

    def retention_minutes(self) -> int:
        """How long the broker keeps the offsets of a group without members."""
        from confluent_kafka.admin._config import ConfigResource
        from confluent_kafka.admin._resource import ResourceType

        broker = min(self._metadata("__consumer_offsets").brokers)
        asked = ConfigResource(ResourceType.BROKER, str(broker))
        futures = self._admin.describe_configs([asked], request_timeout=_TIMEOUT)
        return int(self._asked(futures[asked].result)["offsets.retention.minutes"].value)

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Entry]:
        """What the group holds of these, with every transaction that was decided, and none that is open."""
        from confluent_kafka import TopicPartition as Position

        positions = [Position(at.topic, at.partition) for at in partitions]
        found: dict[TopicPartition, Entry] = {}
        for some in _parts(positions):
            for position in self._settled(some):
                if position.error is not None:
                    raise self._translated(self._errors(position.error))
                if position.offset >= 0:
                    at = TopicPartition(position.topic, position.partition)
                    found[at] = Entry(position.offset, position.metadata or "")
        return found

    def _settled(self, positions: list[Any]) -> list[Any]:
        """The driver waits while a transaction is open over an offset, and says then that its time is up."""
        settle: tuple[Callable[[], None], ...] = (self.reclaim, self._complete_lost)
        for attempt in settle:
            try:
                return list(self._consumer.committed(positions, timeout=_UNSETTLED_SECONDS))
            except self._errors as error:
                if error.args[0].name() != "_TIMED_OUT":
                    raise self._translated(error) from error
            attempt()
        return list(self._asked(lambda: self._consumer.committed(positions, timeout=_TIMEOUT)))

    def reclaim(self) -> None:
        """A transaction was left open, which a claim ends; or nobody answers, which a claim tells."""
        self.release()
        self.claim()

    def _complete_lost(self) -> None:
        """Finish a transaction whose end a broker forgot to write down with the offsets.

        A broker that dies right after it decided a transaction may, when it comes back, call it complete and leave
        its offsets open for ever (seen on Kafka 4.3 with one broker). The end of any later transaction of the same
        producer in the same partition of `__consumer_offsets` ends them too: so commit one for a group that is kept
        there and that nobody reads.
        """
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as Position

        topics = self._metadata().topics
        count = len(topics["__consumer_offsets"].partitions)
        here = _java_hash(self.name) % count
        names = (f"{self.name}-settled-{number}" for number in range(100 * count))
        neighbour = next(name for name in names if _java_hash(name) % count == here)
        consumer = Consumer({**self._config, "group.id": neighbour, "enable.auto.commit": False})
        membership = consumer.consumer_group_metadata()
        consumer.close()
        topic = next(name for name in sorted(topics) if not name.startswith("__"))
        self._transaction([Position(topic, 0, 0)], membership)

    def claim(self) -> None:
        """Fence all others; nothing is done if this was the last to claim, as far as it knows."""
        if self._producer is not None:
            return
        self._refuse_members()
        self._producer = self._bounded(self._initialised)
        self.token = object()

    def commit(self, entries: Mapping[TopicPartition, Entry]) -> bool:
        """Commit all the entries or none; False, with none committed, if somebody else claimed the group."""
        from confluent_kafka import TopicPartition as Position

        positions = [Position(at.topic, at.partition, entry.offset, entry.metadata) for at, entry in entries.items()]
        try:
            self._transaction(positions, self._membership)
        except RetriableError as error:
            if isinstance(error.__cause__, self._errors) and error.__cause__.args[0].name() in _FENCED:
                return False
            raise
        return True

    def _transaction(self, positions: list[Any], membership: Any) -> None:
        producer = self._producer

        def steps() -> None:
            producer.begin_transaction()
            for some in _parts(positions):
                producer.send_offsets_to_transaction(some, membership, _TIMEOUT)
            producer.commit_transaction(_TIMEOUT)

        self.release()  # until it is known to have gone well; the next claim settles what is open or decided
        self._bounded(steps)
        self._producer, self.token = producer, object()

    def _initialised(self) -> Any:
        from confluent_kafka import Producer

        producer = Producer({**self._config, "transactional.id": f"headrace-offsets-{self.name}"})
        for _ in range(2):
            # Asked twice, it knows the brokers by their ids; else the next call often waits 500 ms for them.
            producer.list_topics("__consumer_offsets", timeout=_TIMEOUT)
        producer.init_transactions(_TIMEOUT)
        return producer

    def _bounded(self, step: Callable[[], Any]) -> Any:
        """Do a step of a transaction in a thread: when a broker dies under it, librdkafka may never return.

        A thread that is left behind does no harm: whatever it still does is settled by the next claim.
        """
        outcome: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

        def run() -> None:
            try:
                outcome.put((step(), None))
            except Exception as error:
                outcome.put((None, error))

        threading.Thread(target=run, name="headrace-transaction", daemon=True).start()
        try:
            result, error = outcome.get(timeout=_PATIENCE)
        except Empty:
            raise RetriableError(
                f"Kafka at {self._bootstrap} does not answer for the group {self.name}",
                hint=f"headrace doctor --bootstrap {self._bootstrap}",
            ) from None
        if isinstance(error, self._errors):
            raise self._translated(error) from error
        if error is not None:
            raise error
        return result

    def _metadata(self, topic: str | None = None) -> Any:
        asked = {"timeout": _TIMEOUT} if topic is None else {"topic": topic, "timeout": _TIMEOUT}
        return self._asked(lambda: self._consumer.list_topics(**asked))

    def _refuse_members(self) -> None:
        from confluent_kafka import ConsumerGroupState

        found = self._asked(self._admin.list_consumer_groups(request_timeout=_TIMEOUT).result)
        nobody = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
        if any(group.group_id == self.name and group.state not in nobody for group in found.valid):
            raise ConfigError(
                f"the group {self.name} has live consumers, which would commit over this pipeline's offsets",
                hint='choose another group: stores.Kafka(…, group="another"), or stop those consumers',
            )

    def _asked(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._errors as error:
            raise self._translated(error) from error

    def _complain(self, error: KafkaError) -> None:
        self._complaint = error

    def _translated(self, error: Exception) -> HeadraceError:
        reason: KafkaError = error.args[0]
        # A refused password shows as silence; the reason for it comes on another way.
        if (
            self._complaint is not None
            and self._complaint.name() in _REFUSED
            and reason.name()
            in {
                "_TIMED_OUT",
                "_TRANSPORT",
                "_ALL_BROKERS_DOWN",
            }
        ):
            reason = self._complaint
        if reason.name() in _REFUSED:
            return ConfigError(
                f"Kafka at {self._bootstrap} refuses offsets of the group {self.name}: {reason.str()}",
                hint=_REFUSED[reason.name()],
            )
        return RetriableError(
            f"Kafka at {self._bootstrap} does not answer for the group {self.name}: {reason.str()}",
            hint=f"headrace doctor --bootstrap {self._bootstrap}",
        )


def _parts(positions: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(positions), _ONE_REQUEST):
        yield positions[start : start + _ONE_REQUEST]


def _java_hash(text: str) -> int:
    """How a broker chooses the partition of `__consumer_offsets` that keeps a group."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return abs(value - 2**32 if value >= 2**31 else value) % 2**31


def _quiet_logger() -> logging.Logger:
    """librdkafka writes each failed connection to stderr; the runner says it once, in its own words."""
    logger = logging.getLogger("headrace.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
