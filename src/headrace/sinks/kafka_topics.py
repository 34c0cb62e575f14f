"""The topics that a sink produces to: what each takes, made where that is asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.sinks.kafka_rows import Rules
from headrace.stores.hearing import explained
from headrace.stores.transactions import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

_REMEMBERED_SECONDS = 5.0
_DEFAULT_BYTES = 1_048_588
_CANNOT_BE = {"INVALID_REPLICATION_FACTOR", "INVALID_CONFIG", "TOPIC_EXCEPTION"}


@dataclass(frozen=True, slots=True)
class NewTopics:
    """How topics are made that are not there. -1 leaves a number to the broker."""

    partitions: int = -1
    replication: int = -1
    config: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, create: bool | Mapping[str, Any]) -> NewTopics | None:
        """From `create=True`, or `create={"partitions": 6, "replication": 3, "cleanup.policy": "compact"}`."""
        if isinstance(create, bool):
            return cls() if create else None
        if not isinstance(create, Mapping):
            raise ConfigError(f"create={create!r} is neither true nor false", hint='create=True, or {"partitions": 6}')
        wanted = dict(create)
        numbers = {name: wanted.pop(name, -1) for name in ("partitions", "replication")}
        for name, number in numbers.items():
            if not isinstance(number, int) or isinstance(number, bool) or (number < 1 and number != -1):
                raise ConfigError(f"create: {name}={number!r} is not a number of them", hint=f'{{"{name}": 3}}')
        return cls(numbers["partitions"], numbers["replication"], {name: str(value) for name, value in wanted.items()})


class Topics:
    """Asks the cluster, and remembers the answers for a while."""

    def __init__(self, bootstrap: str, config: Mapping[str, Any], new: NewTopics | None) -> None:
        from confluent_kafka.admin import AdminClient

        self._bootstrap = bootstrap
        self._admin: Any = AdminClient(dict(config))
        self._new = new
        self._known: dict[str, tuple[float, Rules]] = {}

    def rules(self, topic: str) -> Rules | None:
        """What `topic` takes; None if it is not there and is not to be made."""
        asked, known = self._known.get(topic, (0.0, None))
        if known is not None and time.monotonic() - asked < _REMEMBERED_SECONDS:
            return known
        found = self._look(topic)
        if found is None and self._new is not None:
            self.create(topic, self._new)
            found = self._made(topic)
        if found is not None:
            self._known[topic] = (time.monotonic(), found)
        return found

    def create(self, topic: str, new: NewTopics) -> None:
        """Nothing happens if it is there."""
        from confluent_kafka.cimpl import NewTopic

        wanted = NewTopic(topic, new.partitions, new.replication, config=dict(new.config))
        self._ask(self._admin.create_topics([wanted])[topic].result, topic, passed="TOPIC_ALREADY_EXISTS")

    def grow(self, topic: str, partitions: int) -> None:
        """Give it `partitions`, unless it has as many."""
        from confluent_kafka.cimpl import NewPartitions

        wanted = NewPartitions(topic, partitions)
        self._ask(self._admin.create_partitions([wanted])[topic].result, topic, passed="INVALID_PARTITIONS")

    def _made(self, topic: str) -> Rules | None:
        """A broker knows a new topic a moment after it was made."""
        deadline = time.monotonic() + TIMEOUT
        while (found := self._look(topic)) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _look(self, topic: str) -> Rules | None:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin._config import ConfigResource
        from confluent_kafka.admin._resource import ResourceType

        # Not by its metadata: to ask for that would make the topic, where brokers make what they are asked for.
        future = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT)[topic]
        described = self._ask(future.result, topic, passed="UNKNOWN_TOPIC_OR_PART")
        if described is None:
            return None
        asked = ConfigResource(ResourceType.TOPIC, topic)
        future = self._admin.describe_configs([asked], request_timeout=TIMEOUT)[asked]
        settings = self._ask(future.result, topic, passed="TOPIC_AUTHORIZATION_FAILED")
        if settings is None:  # this user may not look at them: what Kafka has by default
            return Rules(len(described.partitions), _DEFAULT_BYTES, compacted=False)
        return Rules(
            partitions=len(described.partitions),
            most_bytes=int(settings["max.message.bytes"].value),
            compacted="compact" in settings["cleanup.policy"].value,
        )

    def _ask(self, question: Callable[[], Any], topic: str, passed: str = "") -> Any:
        """None if the answer is the error `passed`."""
        from confluent_kafka import KafkaException

        try:
            return question()
        except KafkaException as error:
            reason = error.args[0]
            if reason.name() == passed:
                return None
            if reason.name() in _CANNOT_BE:
                raise ConfigError(f"no topic {topic} can be made: {reason.str()}", hint="correct create=…") from error
            raise explained(reason, self._bootstrap, f"the topic {topic}") from error


def unknown(topic: str, bootstrap: str) -> str:
    return f"there is no topic {topic} at {bootstrap}"
