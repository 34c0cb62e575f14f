"""Topics as the command line shows them: partitions, replicas, offsets, settings."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.kafka.cluster import topic_id
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from headrace.kafka.admin import Admin

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
    """A partition with its `first` and `next` offsets. They are None, like `leader`, while it has no leader."""

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
    def problem(self) -> str | None:
        if self.leader is None:
            return "no leader"
        return "under-replicated" if len(self.in_sync) < len(self.replicas) else None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a topic. `source` is topic, broker or default. The value is None if it is hidden."""

    name: str
    value: str | None
    source: str
    hidden: bool


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `settings` are None if this user may not read them."""

    name: str
    id: str
    internal: bool
    partitions: tuple[Partition, ...]
    settings: Mapping[str, Setting] | None

    @property
    def offsets(self) -> int | None:
        """The number of offsets, an upper bound of the number of records: compaction and transactions leave offsets
        without a record. None if it is unknown for a partition."""
        known = [partition.offsets for partition in self.partitions if partition.offsets is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def replication(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    def setting(self, name: str) -> str | None:
        found = self.settings.get(name) if self.settings is not None else None
        return None if found is None else found.value


def topic_names(admin: Admin, pattern: re.Pattern[str] | None = None, *, internal: bool = False) -> list[str]:
    """The topics whose full name matches `pattern`; internal ones only if requested."""
    return sorted(
        name
        for name in admin.topics()
        if (internal or not name.startswith("__")) and (pattern is None or pattern.fullmatch(name))
    )


def describe_topics(admin: Admin, names: Sequence[str]) -> list[Topic]:
    """Describe these topics. ConfigError names a topic that does not exist."""
    if not all(names):
        raise ConfigError("the name of a topic must not be empty", hint="headrace topics list")
    described = admin.describe_topics(names)
    if missing := [name for name in names if name not in described]:
        raise missing_topic(admin, missing[0])
    settings = admin.topic_configs(described)
    led = [
        TopicPartition(name, partition.id)
        for name, found in described.items()
        for partition in found.partitions
        if _leader(partition) is not None
    ]
    # Send both requests before waiting for either: each may take long.
    requests = [
        admin.request_offsets(dict.fromkeys(led, edge), timeout=_OFFSETS_SECONDS) for edge in ("earliest", "latest")
    ]
    first, following = map(known_offsets, requests)
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
            {key: _setting(entry) for key, entry in settings[name].items()} if name in settings else None,
        )
        for name, found in sorted(described.items())
    ]


def missing_topic(admin: Admin, name: str) -> ConfigError:
    return admin.missing_topics([name], hint=f"headrace topics create {name} --partitions 3")


def known_offsets(futures: Mapping[TopicPartition, Future[Any]]) -> dict[TopicPartition, int]:
    """The offsets of partitions whose leader answers: a leader may have died since the partitions were described."""
    from confluent_kafka import KafkaException

    found = {}
    for at, future in futures.items():
        with suppress(KafkaException):
            if (offset := int(future.result().offset)) >= 0:
                found[at] = offset
    return found


def _leader(partition: Any) -> int | None:
    return None if partition.leader is None or partition.leader.id < 0 else int(partition.leader.id)


def _setting(entry: Any) -> Setting:
    from confluent_kafka.admin._config import ConfigSource

    source = ConfigSource(entry.source) if isinstance(entry.source, int) else entry.source
    return Setting(entry.name, entry.value, _SOURCES.get(source.name, "unknown"), entry.is_sensitive)
