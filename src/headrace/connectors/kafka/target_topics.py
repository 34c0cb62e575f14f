"""The topics that a sink produces to: their limits, and the creation of missing topics."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.kafka.records import TopicLimits
from headrace.errors import ConfigError
from headrace.kafka.admin import Admin
from headrace.support.suggest import did_you_mean
from headrace.support.validation import check_pattern, check_whole_number, wrong_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.kafka.client import Client

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_SHOWN = 250
"""Maximum number of characters of a topic name in a message: a row may contain any text."""
_CACHE_SECONDS = 5.0
_DEFAULT_BYTES = 1_048_588
_BAD_NAME = "TOPIC_EXCEPTION"


@dataclass(frozen=True, slots=True)
class NewTopics:
    """Settings of new topics. With -1 the broker chooses the number."""

    partitions: int = -1
    replication: int = -1
    config: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, create: bool | Mapping[str, Any]) -> NewTopics | None:
        """Parse `create=True` or `create={"partitions": 6, "replication": 3, "cleanup.policy": "compact"}`."""
        if isinstance(create, bool):
            return cls() if create else None
        if not isinstance(create, Mapping):
            raise wrong_value("create", "True, False or options of new topics", create, 'create={"partitions": 6}')
        config = dict(create)
        numbers = {name: config.pop(name, -1) for name in ("partitions", "replication")}
        for name, number in numbers.items():
            if number != -1:
                check_whole_number(f"create: {name}", number, hint=f'{{"{name}": 3}}')
        return cls(numbers["partitions"], numbers["replication"], {name: str(value) for name, value in config.items()})


@dataclass(frozen=True, slots=True)
class AllowedTopics:
    """The topics that rows may name: listed ones, or those whose whole name matches `pattern`, but never a source topic
    or the dead-letter topic.

    With a pattern, topics are created only while fewer than `limit` match it.
    """

    names: frozenset[str] | None = None
    pattern: str | None = None
    limit: int = 100
    reads: tuple[Callable[[str], bool], ...] = ()
    """Each returns whether a source of this cluster reads a topic, or whether it receives dead letters."""

    @classmethod
    def of(cls, column: str | None, topics: Sequence[str] | None, pattern: str | None, limit: int) -> Self | None:
        if column is None:
            if topics is not None or pattern is not None:
                raise ConfigError("topics= and pattern= need topic_column=", hint='topic_column="kind", topics=["a"]')
            return None
        example = 'topics=["orders", "refunds"], or pattern="shop\\\\..*"'
        if (topics is None) == (pattern is None):
            raise ConfigError(f"topic_column={column!r}: expected topics= or pattern=, one of both", hint=example)
        if topics is not None and (isinstance(topics, str) or not topics or not all(map(_is_topic_name, topics))):
            raise wrong_value("topics", "a list of topic names", topics, example)
        check_whole_number("max_topics", limit, hint="max_topics=100")
        if pattern is not None:
            check_pattern("pattern", pattern, hint=example)
        return cls(None if topics is None else frozenset(topics), pattern, limit)

    def rejection_reason(self, topic: str) -> str | None:
        """The reason why rows may not name `topic`; None if they may."""
        if self.names is not None and topic not in self.names:
            return f"expected a topic of {', '.join(sorted(self.names))}, got {topic[:_MAX_SHOWN]!r}"
        if self.pattern is not None and not (_is_topic_name(topic) and re.fullmatch(self.pattern, topic)):
            return f"expected a topic that matches {self.pattern}, got {topic[:_MAX_SHOWN]!r}"
        if any(reads(topic) for reads in self.reads):
            return f"the pipeline reads the topic {topic}, or has its dead letters there: the record would come back"
        return None


def _is_topic_name(topic: object) -> bool:
    """Whether this is a valid topic name and not that of an internal topic."""
    if not isinstance(topic, str) or topic in (".", "..") or topic.startswith("__"):
        return False
    return _NAME.fullmatch(topic) is not None


def _is_invalid_name(error: ConfigError) -> bool:
    """Whether a broker refuses the name of a new topic, not its settings."""
    cause: Any = error.__cause__
    return cause is not None and cause.args[0].name() == _BAD_NAME


class TargetTopics:
    """The limits of topics, cached for some seconds."""

    def __init__(self, client: Client, new: NewTopics | None, allowed: AllowedTopics | None = None) -> None:
        self._bootstrap = client.bootstrap
        self._admin = Admin(client)
        self._new = new
        self._allowed = allowed
        self._known: dict[str, tuple[float, TopicLimits]] = {}
        self.reason = ""
        """The reason why the last call of `limits` returned None."""

    def limits(self, topic: str) -> TopicLimits | None:
        """The limits of `topic`; None if it does not exist and must not be created."""
        fetched_at, known = self._known.get(topic, (0.0, None))
        if known is not None and time.monotonic() - fetched_at < _CACHE_SECONDS:
            return known
        found = self._describe(topic)
        if found is None:
            self.reason = missing_topic(topic, self._bootstrap)
            if self._new is not None and self._create_if_allowed(topic, self._new):
                found = self._describe(topic)
        if found is not None:
            self._known[topic] = (time.monotonic(), found)
        return found

    def _create_if_allowed(self, topic: str, new: NewTopics) -> bool:
        """False, with a `reason`, if a row names a topic that must not or cannot be created: the row is rejected."""
        if self._allowed is None or self._allowed.pattern is None:
            self._create(topic, new)
            return True
        matching = [topic for topic in self._admin.topics() if re.fullmatch(self._allowed.pattern, topic)]
        if len(matching) >= self._allowed.limit:
            self.reason += f", and max_topics={self._allowed.limit} match the pattern already"
            return False
        try:
            self._create(topic, new)
        except ConfigError as error:
            if not _is_invalid_name(error):
                raise
            self.reason += f", and {error.message}"  # Kafka refuses a name that differs only in . and _
            return False
        return True

    def suggest(self, topic: str) -> str | None:
        """ "did you mean …?", if a topic has a similar name."""
        return did_you_mean(topic, filter(_is_topic_name, self._admin.topics()), 0.8)

    def _create(self, topic: str, new: NewTopics) -> None:
        self._admin.create_topic(topic, new.partitions, new.replication, new.config, hint="correct create=…")

    def _describe(self, topic: str) -> TopicLimits | None:
        described = self._admin.describe_topics([topic]).get(topic)
        if described is None:
            return None
        partitions = len(described.partitions)
        settings = self._admin.topic_configs([topic], ignored={"TOPIC_AUTHORIZATION_FAILED"}).get(topic)
        if settings is None:  # this user may not read them: the defaults of Kafka
            return TopicLimits(partitions, _DEFAULT_BYTES, compacted=False)
        return TopicLimits(
            partitions,
            max_bytes=int(settings["max.message.bytes"].value),
            compacted="compact" in settings["cleanup.policy"].value,
        )


def missing_topic(topic: str, bootstrap: str) -> str:
    return f"there is no topic {topic} on {bootstrap}"
