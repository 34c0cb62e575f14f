"""Rules that choose the partitions a source reads."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.support.validation import check_pattern, check_whole_number, wrong_value
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ANY_COUNT = 1_000
"""Assumed number of partitions when `reads` checks a topic: a rule may skip the first ones."""


class Subscription(ABC):
    """A rule that chooses partitions. Called at the start of a run and every `refresh` seconds, so it may add some.

    Pass your own rule as `topics`: `hr.Kafka(…, topics=EverySecondPartition("clicks"))`.
    """

    names: Sequence[str] | None = None
    """The topic names, if the rule knows them; a missing topic is an error. None: any topics of the cluster."""

    @abstractmethod
    def wanted(self, topics: Mapping[str, int]) -> Iterable[TopicPartition]:
        """The partitions to read. `topics` has the partition count of each topic in `names`, or of all topics."""

    def reads(self, topic: str) -> bool:
        """Whether the rule reads any partition of a topic."""
        return topic in self.names if self.names is not None else any(self.wanted({topic: _ANY_COUNT}))

    @abstractmethod
    def __str__(self) -> str:
        """A short description for `headrace check`."""


@dataclass(frozen=True)
class Topics(Subscription):
    """All partitions of the named topics."""

    names: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise ConfigError(
                f"topics={self.names!r} is one string; expected a list of names", hint=f"topics=[{self.names!r}]"
            )
        if not isinstance(self.names, list | tuple | set | frozenset):
            raise ConfigError(f"topics={self.names!r} is not a list of names", hint='topics=["clicks"]')
        if not self.names:
            raise ConfigError("Kafka(topics=[]): expected at least one topic", hint='topics=["clicks"]')
        object.__setattr__(self, "names", tuple(dict.fromkeys(check_topic_name(name) for name in self.names)))

    def wanted(self, topics: Mapping[str, int]) -> Iterable[TopicPartition]:
        return (TopicPartition(topic, number) for topic, count in topics.items() for number in range(count))

    def __str__(self) -> str:
        return ", ".join(self.names)


@dataclass(frozen=True)
class Pattern(Subscription):
    """All partitions of every topic whose whole name matches a regular expression, except Kafka's internal topics."""

    pattern: str

    def __post_init__(self) -> None:
        check_pattern("pattern", self.pattern, hint=r'pattern="clicks\\..*"')

    def wanted(self, topics: Mapping[str, int]) -> Iterable[TopicPartition]:
        return (
            TopicPartition(topic, number)
            for topic, count in topics.items()
            if re.fullmatch(self.pattern, topic) and not topic.startswith("__")
            for number in range(count)
        )

    def __str__(self) -> str:
        return f"topics like {self.pattern}"


@dataclass(frozen=True)
class Partitions(Subscription):
    """A fixed list of partitions: partitions that are added to a topic are not read."""

    partitions: Mapping[str, Sequence[int]]

    def __post_init__(self) -> None:
        example = 'partitions={"clicks": [0, 1]}'
        if not isinstance(self.partitions, Mapping) or not self.partitions:
            raise wrong_value("partitions", "topics with their partitions", self.partitions, example)
        for topic, numbers in self.partitions.items():
            check_topic_name(topic)
            if not isinstance(numbers, list | tuple | set | frozenset | range) or not numbers:
                raise wrong_value(f"partitions of {topic}", "a list of numbers", numbers, example)
            for number in numbers:
                check_whole_number(f"partitions of {topic}", number, minimum=0, hint=example)
        object.__setattr__(self, "partitions", {topic: tuple(sorted(set(n))) for topic, n in self.partitions.items()})
        object.__setattr__(self, "names", tuple(self.partitions))

    def wanted(self, topics: Mapping[str, int]) -> Iterable[TopicPartition]:
        for topic, numbers in self.partitions.items():
            if topic in topics and (missing := [number for number in numbers if number >= topics[topic]]):
                raise ConfigError(
                    f"{topic} has no partition {missing[0]}: it has {topics[topic]}, from 0 on",
                    hint="correct partitions={…}, or headrace topics alter",
                )
        return [TopicPartition(topic, number) for topic, numbers in self.partitions.items() for number in numbers]

    def __str__(self) -> str:
        return ", ".join(f"{topic}[{', '.join(map(str, numbers))}]" for topic, numbers in self.partitions.items())


def check_topic_name(topic: object) -> str:
    """Return `topic`. ConfigError if it is not a valid topic name."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise ConfigError(f"{topic!r} is not a valid topic name: expected up to 249 letters, digits, dots, _ and -")
    return topic
