"""Consumer groups as the command line shows them: members and committed offsets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

    from headrace.kafka.admin import Admin
    from headrace.kafka.commit_metadata import CommittedOffset

_PARALLEL_REQUESTS = 8
WITHOUT_MEMBERS = ("EMPTY", "DEAD")
"""States of groups without members."""


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    client: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group. `offsets` are None while an open transaction covers them. `is_headrace`: of a pipeline."""

    name: str
    state: str
    type: str
    assignor: str
    coordinator: int | None
    members: tuple[Member, ...]
    offsets: Mapping[TopicPartition, CommittedOffset] | None

    @property
    def is_headrace(self) -> bool:
        return any(entry.metadata.startswith('{"headrace":') for entry in (self.offsets or {}).values())

    def owner(self, at: TopicPartition) -> Member | None:
        return next((member for member in self.members if at in member.partitions), None)


def group_names(admin: Admin, pattern: re.Pattern[str] | None = None) -> list[str]:
    found = admin.list_groups()
    if found.errors:
        raise admin.client.to_headrace_error(found.errors[0].args[0], "its groups")
    return sorted(group.group_id for group in found.valid if pattern is None or pattern.fullmatch(group.group_id))


def describe_groups(admin: Admin, names: Sequence[str]) -> list[Group]:
    described, partitions = admin.describe_groups(names), _partitions(admin)
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="headrace-groups") as pool:
        offsets = pool.map(lambda name: admin.committed_offsets(name, partitions), names)
        return [_group(name, described.get(name), committed) for name, committed in zip(names, offsets, strict=True)]


def group_offsets(admin: Admin, name: str) -> dict[TopicPartition, CommittedOffset]:
    found = admin.committed_offsets(name, _partitions(admin))
    if found is None:
        raise ConfigError(
            f"a transaction is open over the offsets of the group {name}", hint="headrace transactions list"
        )
    if not found and name not in group_names(admin):
        raise ConfigError(f"there is no group {name} at {admin.client.bootstrap}", hint="headrace groups list")
    return found


def _partitions(admin: Admin) -> list[TopicPartition]:
    """All partitions of the cluster: a group may have offsets of any of them."""
    return [TopicPartition(topic, number) for topic, count in admin.topics().items() for number in range(count)]


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
