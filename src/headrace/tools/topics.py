"""Topics: looked at, made, changed, deleted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.kafka.client import TIMEOUT, Client
from headrace.kafka.cluster import topic_id
from headrace.support.polling import wait_until
from headrace.support.suggest import did_you_mean
from headrace.text import counted
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

_AT_ONCE = 500
_OFFSETS_SECONDS = 5.0
_SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": "topic",
    "DYNAMIC_BROKER_CONFIG": "broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "broker",
    "STATIC_BROKER_CONFIG": "broker",
    "DEFAULT_CONFIG": "default",
}


@dataclass(frozen=True, slots=True)
class Partition:
    """`leader` is None while there is none; then nobody knows `first` and `next`, its first and next offsets."""

    number: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    first: int | None
    next: int | None

    @property
    def offsets(self) -> int | None:
        return None if self.first is None or self.next is None else self.next - self.first

    @property
    def trouble(self) -> str | None:
        if self.leader is None:
            return "no leader"
        return "under-replicated" if len(self.in_sync) < len(self.replicas) else None


@dataclass(frozen=True, slots=True)
class Setting:
    """`source` says who set it: the topic, the broker, or nobody (default). A hidden value is None."""

    name: str
    value: str | None
    source: str
    hidden: bool


@dataclass(frozen=True, slots=True)
class Topic:
    """`settings` are None where this user may not look at them."""

    name: str
    id: str
    internal: bool
    partitions: tuple[Partition, ...]
    settings: Mapping[str, Setting] | None

    @property
    def offsets(self) -> int | None:
        """As many records there are at the most: compaction and transactions leave offsets without one. None while a
        partition does not say."""
        known = [partition.offsets for partition in self.partitions if partition.offsets is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def replication(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    def setting(self, name: str) -> str | None:
        found = self.settings.get(name) if self.settings is not None else None
        return None if found is None else found.value


class Topics:
    """The topics of one cluster. Every method raises RetriableError while no broker answers."""

    def __init__(self, client: Client, timeout: float = TIMEOUT) -> None:
        self._client = client
        self._admin = client.admin(timeout)
        self._timeout = timeout

    def names(self, pattern: re.Pattern[str] | None = None, *, internal: bool = False) -> list[str]:
        """Those whose whole name `pattern` fits; without the internal ones, unless asked for."""
        found = self._client.ask(lambda: self._admin.list_topics(timeout=self._timeout), "its topics")
        return sorted(
            name
            for name in found.topics
            if (internal or not name.startswith("__")) and (pattern is None or pattern.fullmatch(name))
        )

    def describe(self, names: Sequence[str]) -> list[Topic]:
        """ConfigError names those that are not there."""
        from confluent_kafka import TopicCollection

        _check(names)
        described: dict[str, Any] = {}
        for some in _parts(names):
            futures = self._admin.describe_topics(TopicCollection(list(some)), request_timeout=self._timeout)
            for name, future in futures.items():
                described[name] = self._client.ask(future.result, f"the topic {name}", ("UNKNOWN_TOPIC_OR_PART",))
        if missing := [name for name, found in described.items() if found is None]:
            raise self.missing(missing[0])
        return self._complete(described)

    def describe_if_there(self, name: str) -> Topic | None:
        """Not asked by its metadata: that would make the topic, where brokers make what they are asked for."""
        from confluent_kafka import TopicCollection

        _check([name])
        future = self._admin.describe_topics(TopicCollection([name]), request_timeout=self._timeout)[name]
        found = self._client.ask(future.result, f"the topic {name}", ("UNKNOWN_TOPIC_OR_PART",))
        return None if found is None else self._complete({name: found})[0]

    def missing(self, name: str) -> ConfigError:
        there = self.names()
        shown = ", ".join(there[:10]) + (" …" if len(there) > 10 else "")
        return ConfigError(
            f"there is no topic {name} at {self._client.bootstrap}; topics there: {shown or 'none'}",
            hint=did_you_mean(name, there) or f"headrace topics create {name} --partitions 3",
        )

    def create(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> bool:
        """False if it is there. -1 leaves a number to the broker."""
        from confluent_kafka.cimpl import NewTopic

        wanted = NewTopic(name, partitions, replication, config=dict(config))
        future = self._admin.create_topics([wanted], request_timeout=self._timeout)[name]
        made = self._client.ask(
            lambda: (future.result(), True)[1], f"no topic {name} can be made", ("TOPIC_ALREADY_EXISTS",)
        )
        wait_until(lambda: self.describe_if_there(name) is not None, self._timeout)
        return made is not None

    def grow(self, name: str, partitions: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        wanted = NewPartitions(name, partitions)
        future = self._admin.create_partitions([wanted], request_timeout=self._timeout)[name]
        self._client.ask(future.result, f"{name} cannot have {counted(partitions, 'partition')}")

    def configure(
        self, name: str, changes: Mapping[str, str], unset: Iterable[str] = (), *, only_asked: bool = False
    ) -> None:
        """`only_asked`: whether the cluster would take it is asked, and nothing is done."""
        from confluent_kafka.admin import _config
        from confluent_kafka.admin._resource import ResourceType

        operation, entry = _config.AlterConfigOpType, _config.ConfigEntry
        entries = [entry(n, value, incremental_operation=operation.SET) for n, value in changes.items()]
        entries += [entry(n, None, incremental_operation=operation.DELETE) for n in unset]
        resource = _config.ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        future = self._admin.incremental_alter_configs(
            [resource], request_timeout=self._timeout, validate_only=only_asked
        )[resource]
        self._client.ask(future.result, f"{name} cannot be configured so")

    def delete(self, names: Sequence[str]) -> None:
        for name, future in self._admin.delete_topics(list(names), request_timeout=self._timeout).items():
            self._client.ask(future.result, f"the topic {name}", ("UNKNOWN_TOPIC_OR_PART",))
        wait_until(lambda: set(names).isdisjoint(self.names(internal=True)), self._timeout)

    def _complete(self, described: Mapping[str, Any]) -> list[Topic]:
        settings = self._settings(list(described))
        led = [
            TopicPartition(name, partition.id)
            for name, found in described.items()
            for partition in found.partitions
            if _leader(partition) is not None
        ]
        asked = [self._ask_offsets(led, first=first) for first in (True, False)]  # both at once: either may take long
        first, following = (answered(futures) for futures in asked)
        return [
            Topic(
                name,
                topic_id(name, str(found.topic_id)),
                found.is_internal,
                tuple(
                    Partition(
                        partition.id,
                        _leader(partition),
                        tuple(node.id for node in partition.replicas),
                        tuple(node.id for node in partition.isr),
                        first.get(TopicPartition(name, partition.id)),
                        following.get(TopicPartition(name, partition.id)),
                    )
                    for partition in found.partitions
                ),
                settings[name],
            )
            for name, found in sorted(described.items())
        ]

    def _ask_offsets(self, partitions: Iterable[TopicPartition], *, first: bool) -> Mapping[Any, Future[Any]]:
        """The next offset is that of readers of committed records."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as Position
        from confluent_kafka.admin import _listoffsets

        spec: Any = _listoffsets.OffsetSpec
        wanted = spec.earliest() if first else spec.latest()
        asked = {Position(at.topic, at.partition): wanted for at in partitions}
        if not asked:
            return {}
        timeout = min(self._timeout, _OFFSETS_SECONDS)
        found: Mapping[Any, Future[Any]] = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout
        )
        return found

    def _settings(self, names: Sequence[str]) -> dict[str, dict[str, Setting] | None]:
        from confluent_kafka.admin._config import ConfigResource
        from confluent_kafka.admin._resource import ResourceType

        found: dict[str, dict[str, Setting] | None] = {}
        for some in _parts(names):
            asked = [ConfigResource(ResourceType.TOPIC, name) for name in some]
            for resource, future in self._admin.describe_configs(asked, request_timeout=self._timeout).items():
                what, passed = f"the topic {resource.name}", ("TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART")
                entries = self._client.ask(future.result, what, passed)
                found[resource.name] = None if entries is None else {n: _setting(e) for n, e in entries.items()}
        return found


def answered(futures: Mapping[Any, Future[Any]]) -> dict[TopicPartition, int]:
    """Of those whose leader answers: that of others died since, and what they have is not known."""
    from confluent_kafka import KafkaException

    found = {}
    for position, future in futures.items():
        with suppress(KafkaException):
            offset = int(future.result().offset)
            if offset >= 0:
                found[TopicPartition(position.topic, position.partition)] = offset
    return found


def _check(names: Iterable[str]) -> None:
    if not all(names):
        raise ConfigError("a topic without a name is none", hint="headrace topics list")


def _leader(partition: Any) -> int | None:
    return None if partition.leader is None or partition.leader.id < 0 else int(partition.leader.id)


def _setting(entry: Any) -> Setting:
    from confluent_kafka.admin._config import ConfigSource

    source = ConfigSource(entry.source) if isinstance(entry.source, int) else entry.source
    return Setting(entry.name, entry.value, _SOURCES.get(source.name, "unknown"), entry.is_sensitive)


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _AT_ONCE):
        yield names[start : start + _AT_ONCE]
