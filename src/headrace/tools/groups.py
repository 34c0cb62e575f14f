"""Consumer groups: who is in them, what they have committed, deleted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.kafka.client import TIMEOUT, Client
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.kafka.transactions import chunked
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

_AT_ONCE = 8
_UNSETTLED_SECONDS = 3.0
NOBODY = ("EMPTY", "DEAD")
"""States of a group without members."""


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    client: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`ours`: it keeps the offsets of a Headrace pipeline. `offsets` are None while a transaction holds them."""

    name: str
    state: str
    kind: str
    assignor: str
    coordinator: int | None
    members: tuple[Member, ...]
    offsets: Mapping[TopicPartition, CommittedOffset] | None

    @property
    def ours(self) -> bool:
        return any(entry.metadata.startswith('{"headrace":') for entry in (self.offsets or {}).values())

    def owner(self, at: TopicPartition) -> Member | None:
        return next((member for member in self.members if at in member.partitions), None)


class Groups:
    """The consumer groups of one cluster. Nothing here joins one, or ends a transaction."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._admin = client.admin()

    def names(self, pattern: re.Pattern[str] | None = None) -> list[str]:
        found = self._client.ask(self._admin.list_consumer_groups(request_timeout=TIMEOUT).result, "its groups")
        if found.errors:
            raise self._client.ours(found.errors[0].args[0], "its groups")
        return sorted(group.group_id for group in found.valid if pattern is None or pattern.fullmatch(group.group_id))

    def describe(self, names: Sequence[str]) -> list[Group]:
        if not names:
            return []
        described = {}
        for name, future in self._admin.describe_consumer_groups(list(names), request_timeout=TIMEOUT).items():
            passed = ("GROUP_ID_NOT_FOUND",)
            described[name] = self._client.ask(future.result, f"the group {name}", passed)
        there = self._partitions()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-groups") as side_by_side:
            offsets = list(side_by_side.map(lambda name: self._committed(name, there), names))
        return [_group(name, described[name], kept) for name, kept in zip(names, offsets, strict=True)]

    def offsets(self, name: str) -> dict[TopicPartition, CommittedOffset]:
        found = self._committed(name, self._partitions())
        if found is None:
            raise ConfigError(
                f"a transaction is open over the offsets of the group {name}", hint="headrace transactions list"
            )
        if not found and name not in self.names():
            raise ConfigError(f"there is no group {name} at {self._client.bootstrap}", hint="headrace groups list")
        return found

    def delete(self, names: Sequence[str]) -> None:
        for name, future in self._admin.delete_consumer_groups(list(names), request_timeout=TIMEOUT).items():
            self._client.ask(future.result, f"the group {name}", ("GROUP_ID_NOT_FOUND",))

    def _partitions(self) -> list[TopicPartition]:
        """All there are: a group may hold any of them."""
        topics = self._client.ask(lambda: self._admin.list_topics(timeout=TIMEOUT), "its topics").topics
        return [TopicPartition(topic, number) for topic, found in sorted(topics.items()) for number in found.partitions]

    def _committed(self, name: str, there: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset] | None:
        """Asked of a consumer that never joins: the admin client takes the process down when the coordinator moves
        while it asks (librdkafka #5040, #5397)."""
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as Position

        what = f"the group {name}"
        settings = {**self._client.connecting, "group.id": name, "enable.auto.commit": False}
        found: dict[TopicPartition, CommittedOffset] = {}
        with closing(Consumer(settings)) as consumer:
            for some in chunked([Position(at.topic, at.partition) for at in there]):
                ask = lambda some=some: consumer.committed(some, timeout=_UNSETTLED_SECONDS)  # noqa: E731
                positions = self._client.ask(ask, what, ("_TIMED_OUT",))
                if positions is None:
                    return None
                for position in positions:
                    if position.offset >= 0:
                        at = TopicPartition(position.topic, position.partition)
                        found[at] = CommittedOffset(position.offset, position.metadata or "")
        return found


def _group(name: str, described: Any, offsets: Mapping[TopicPartition, CommittedOffset] | None) -> Group:
    if described is None:
        return Group(name, "dead", "unknown", "", None, (), offsets)
    members = [
        Member(
            member.member_id,
            member.client_id,
            member.host,
            tuple(sorted(TopicPartition(p.topic, p.partition) for p in member.assignment.topic_partitions)),
        )
        for member in described.members
    ]
    coordinator = described.coordinator.id if described.coordinator is not None else None
    return Group(
        name,
        described.state.name.lower(),
        described.type.name.lower(),
        described.partition_assignor,
        coordinator,
        tuple(sorted(members, key=lambda member: (member.partitions, member.id))),
        offsets,
    )
