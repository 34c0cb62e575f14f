"""A consumer group that nobody joins: its offsets read when they are settled, and committed in transactions."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.stores.shares import Entry
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka import KafkaError

_TIMEOUT = 10.0
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
    "UNKNOWN_TOPIC_OR_PART": "Kafka keeps offsets only of topics that exist: create the topic, or leave it out",
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
    """

    def __init__(self, bootstrap: str, options: Mapping[str, str], name: str) -> None:
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka.admin import AdminClient

        self.name = name
        self.token: object | None = None
        self._bootstrap = bootstrap
        self._errors = KafkaException
        self._doubtful = False
        self._complaint: KafkaError | None = None
        shared = {key: value for key, value in options.items() if key.startswith(_SHARED_PREFIXES)}
        self._config: dict[str, Any] = {
            "client.id": "headrace",
            "reconnect.backoff.max.ms": 1000,  # 10 s by default: a broker that is back should be found
            **shared,
            "bootstrap.servers": bootstrap,
            "logger": _quiet_logger(),
            "error_cb": self._complain,
        }
        self._producer: Any = None
        try:
            self._admin: Any = AdminClient(self._config)
            consumer = Consumer({**self._config, "group.id": name, "enable.auto.commit": False})
            self._membership = consumer.consumer_group_metadata()  # of nobody: it never joins
            consumer.close()
        except KafkaException as error:
            raise ConfigError(f"Kafka refuses these options: {error.args[0].str()}") from error

    def close(self) -> None:
        self._producer = self.token = None

    def cluster_id(self) -> str:
        found = self._asked(lambda: self._admin.list_topics("__consumer_offsets", timeout=_TIMEOUT))
        return str(found.cluster_id)

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
        from confluent_kafka.admin import ConfigResource, ResourceType

        brokers = self._asked(lambda: self._admin.list_topics("__consumer_offsets", timeout=_TIMEOUT)).brokers
        asked = ConfigResource(ResourceType.BROKER, str(min(brokers)))
        futures = self._admin.describe_configs([asked], request_timeout=_TIMEOUT)
        return int(self._asked(futures[asked].result)["offsets.retention.minutes"].value)

    def fetch(self) -> dict[TopicPartition, Entry]:
        """All the group holds, with every transaction that was decided in it, and none that is open."""
        if self._doubtful:
            self.claim()
        deadline = time.monotonic() + _UNSETTLED_SECONDS
        while True:
            found = self._listed(None)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                self.close()  # whoever left it open is dead or slow: settle it
                self.claim()
                deadline = time.monotonic() + _TIMEOUT
            time.sleep(0.002)

    def claim(self) -> None:
        """Fence all others; nothing is done if this was the last to claim, as far as it knows."""
        if self._producer is not None:
            return
        from confluent_kafka import Producer

        self._refuse_members()
        try:
            producer = Producer({**self._config, "transactional.id": f"headrace-offsets-{self.name}"})
            for _ in range(2):
                # Asked twice, it knows the brokers by their ids; else the next call often waits 500 ms for them.
                producer.list_topics("__consumer_offsets", timeout=_TIMEOUT)
            producer.init_transactions(_TIMEOUT)
        except self._errors as error:
            raise self._translated(error) from error
        self._producer, self.token, self._doubtful = producer, object(), False

    def commit(self, entries: Mapping[TopicPartition, Entry], *, first: bool) -> bool:
        """Commit all the entries or none; False, with none committed, if somebody else claimed the group.

        `first`: some of these partitions have no entry yet.
        """
        from confluent_kafka import TopicPartition as Position

        positions = [Position(at.topic, at.partition, entry.offset, entry.metadata) for at, entry in entries.items()]
        try:
            self._producer.begin_transaction()
            for start in range(0, len(positions), _ONE_REQUEST):
                some = positions[start : start + _ONE_REQUEST]
                self._producer.send_offsets_to_transaction(some, self._membership, _TIMEOUT)
            self._producer.commit_transaction(_TIMEOUT)
        except self._errors as error:
            self.close()
            if error.args[0].name() in _FENCED:
                return False
            self._doubtful = True  # it may be open, or decided: the next claim settles it
            raise self._translated(error) from error
        self.token = object()
        if first:
            self._await(positions[0])
        return True

    def _await(self, position: Any) -> None:
        """Return when a commit shows.

        A broker answers for all of a group with "not settled yet" only where a partition had an entry before: one
        that is new is left out instead, and a reader would take the group for what it was.
        """
        deadline = time.monotonic() + _TIMEOUT
        while self._listed([position]) is None:
            if time.monotonic() > deadline:
                self.close()
                self._doubtful = True
                raise RetriableError(f"Kafka at {self._bootstrap} does not finish the transaction of {self.name}")
            time.sleep(0.002)

    def _listed(self, positions: list[Any] | None) -> dict[TopicPartition, Entry] | None:
        """The group's entries; None while a transaction is open over some of them."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        asked = [ConsumerGroupTopicPartitions(self.name, positions)]
        futures = self._admin.list_consumer_group_offsets(asked, require_stable=True, request_timeout=_TIMEOUT)
        found: dict[TopicPartition, Entry] = {}
        for position in self._asked(futures[self.name].result).topic_partitions:
            if position.error is not None:
                if position.error.name() == "UNSTABLE_OFFSET_COMMIT":
                    return None
                raise self._translated(self._errors(position.error))
            if position.offset >= 0:
                at = TopicPartition(position.topic, position.partition)
                found[at] = Entry(position.offset, position.metadata or "")
        return found

    def _refuse_members(self) -> None:
        futures = self._admin.describe_consumer_groups([self.name], request_timeout=_TIMEOUT)
        try:
            members = futures[self.name].result().members
        except self._errors as error:
            if error.args[0].name() == "GROUP_ID_NOT_FOUND":
                return
            raise self._translated(error) from error
        if members:
            raise ConfigError(
                f"the group {self.name} has live consumers ({members[0].client_id} on {members[0].host}), which would"
                " commit over this pipeline's offsets",
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
        if self._complaint is not None and self._complaint.name() in _REFUSED and reason.name() in {
            "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN",
        }:
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


def _quiet_logger() -> logging.Logger:
    """librdkafka writes each failed connection to stderr; the runner says it once, in its own words."""
    logger = logging.getLogger("headrace.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
