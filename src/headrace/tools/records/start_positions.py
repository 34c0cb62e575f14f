"""Selects the partitions to consume, and their start offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.kafka.admin import Admin
from headrace.kafka.cluster import Cluster
from headrace.kafka.subscription import Subscription
from headrace.tools.topics import missing_topic, topic_names
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from headrace.core.planner import TopicLog
    from headrace.kafka.client import Client


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where to start: exactly one field is set. `offsets` also select the partitions to read."""

    edge: str | None = None
    time: datetime | None = None
    last: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Topics by name or by pattern, and all their partitions or some."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: frozenset[int] = frozenset()

    def includes(self, at: TopicPartition) -> bool:
        return not self.partitions or at.partition in self.partitions


@dataclass(frozen=True)
class _ChosenPartitions(Subscription):
    """Requests only the selected partitions of these topics: others may have no leader."""

    includes: Callable[[TopicPartition], bool]
    names: Sequence[str] = ()

    def wanted(self, topics: Mapping[str, int]) -> Iterable[TopicPartition]:
        partitions = (TopicPartition(topic, number) for topic, count in topics.items() for number in range(count))
        return [at for at in partitions if self.includes(at)]

    def __str__(self) -> str:
        return ", ".join(self.names)


def positions(
    start: StartAt, logs: Mapping[str, TopicLog], wanted: TopicSelection, at_time: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The start offset of each partition. ConfigError for an offset that a log does not have. Pure."""
    found: dict[TopicPartition, int] = {}
    for log in logs.values():
        for at, first in sorted(log.beginnings.items()):
            end = log.ends[at]
            if start.offsets:
                if at in start.offsets:
                    found[at] = _check_offset(at, start.offsets[at], first, end)
            elif wanted.includes(at):
                found[at] = _position(start, first, end, at_time.get(at))
    if missing := sorted(start.offsets.keys() - found.keys()):
        raise ConfigError(f"there is no partition {missing[0]}", hint=f"headrace topics describe {missing[0].topic}")
    if logs and not start.offsets and (missing_numbers := wanted.partitions - {at.partition for at in found}):
        raise ConfigError(f"no topic has a partition {min(missing_numbers)}", hint="headrace topics describe TOPIC")
    return found


def _check_offset(at: TopicPartition, offset: int, first: int, end: int) -> int:
    if not first <= offset <= end:
        reason = "it has aged out" if offset < first else "the log ends before it"
        raise ConfigError(
            f"{at} has no offset {offset:,}: {reason}; there are {first:,} to {end:,}",
            hint=f"--from {at.topic}:{at.partition}:{first if offset < first else end}, or --from earliest",
        )
    return offset


def _position(start: StartAt, first: int, end: int, at_time: int | None) -> int:
    if start.last is not None:
        return max(first, end - start.last)
    if start.time is not None:
        return end if at_time is None else at_time
    return first if start.edge == "earliest" else end


class ConsumePlan:
    """Start and end offsets of the selected partitions. With `follow`, a pattern may match nothing yet."""

    def __init__(self, client: Client, wanted: TopicSelection, start: StartAt, *, follow: bool) -> None:
        self._admin = Admin(client)
        self._cluster = Cluster(client.bootstrap, client.options)
        self.wanted = wanted
        self._start = start
        self._follow = follow

    def topic_names(self) -> list[str]:
        """The topics. ConfigError names one that does not exist."""
        if self.wanted.pattern is not None:
            found = topic_names(self._admin, self.wanted.pattern)
            if not found and not self._follow:
                raise ConfigError(f"no topic matches {self.wanted.pattern.pattern}", hint="headrace topics list")
            return found
        known = self._admin.topics()
        if missing := [name for name in self.wanted.topics if name not in known]:
            raise missing_topic(self._admin, missing[0])
        return list(self.wanted.topics)

    def start_offsets(self, names: Sequence[str]) -> dict[TopicPartition, int]:
        """The start offset of each partition of these topics."""
        logs = self._logs(names)
        partitions = [at for log in logs.values() for at in log.ends]
        at_time = self._cluster.at_time(partitions, self._start.time) if self._start.time else {}
        return positions(self._start, logs, self.wanted, at_time)

    def new_partitions(self, known: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Partitions that are not `known`, with their first offsets."""
        names = self.topic_names()
        if self._start.offsets or not names:
            return {}
        return {
            at: first for log in self._logs(names).values() for at, first in log.beginnings.items() if at not in known
        }

    def _logs(self, names: Sequence[str]) -> dict[str, TopicLog]:
        chosen = self._start.offsets.__contains__ if self._start.offsets else self.wanted.includes
        return self._cluster.logs(_ChosenPartitions(chosen, tuple(names))) if names else {}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The current end offsets."""
        return self._cluster.ends(partitions)
