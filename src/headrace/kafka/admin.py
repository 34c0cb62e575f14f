"""Requests to the brokers of one Kafka cluster: topics, partitions, configurations, offsets, consumer groups."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.kafka.client import TIMEOUT, Client, chunked
from headrace.support.polling import wait_until
from headrace.support.suggest import did_you_mean
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.kafka.commit_metadata import CommittedOffset

_TOPICS_PER_REQUEST = 500
_OPEN_TRANSACTION_SECONDS = 3.0
_NO_TOPIC = "UNKNOWN_TOPIC_OR_PART"
_NO_GROUP = "GROUP_ID_NOT_FOUND"


class Admin:
    """Every method raises ConfigError for a permanent error, and RetriableError while no broker answers."""

    def __init__(self, client: Client, timeout: float = TIMEOUT) -> None:
        self.client = client
        self._driver = client.admin_client()
        self._timeout = timeout

    def describe_cluster(self) -> Any:
        return self._wait(self._driver.describe_cluster(request_timeout=self._timeout))

    def broker_config(self) -> Mapping[str, Any]:
        """The settings of one broker."""
        from confluent_kafka.admin._resource import ResourceType

        broker = str(min(node.id for node in self.describe_cluster().nodes))
        (future,) = self._request_configs(ResourceType.BROKER, [broker]).values()
        found: Mapping[str, Any] = self._wait(future, "the settings of a broker")
        return found

    def topics(self) -> dict[str, int]:
        """The number of partitions of each topic."""
        self.describe_cluster()  # raises at once if the login is refused; the next call would raise after its timeout
        found = self.client.call(lambda: self._driver.list_topics(timeout=self._timeout), "its topics").topics
        return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}

    def describe_topics(self, names: Iterable[str]) -> dict[str, Any]:
        """The existing topics of `names`. A metadata request could create the others (auto.create.topics.enable)."""
        from confluent_kafka import TopicCollection

        found: dict[str, Any] = {}
        for chunk in chunked(list(names), _TOPICS_PER_REQUEST):
            futures = self._driver.describe_topics(TopicCollection(list(chunk)), request_timeout=self._timeout)
            for name, future in futures.items():
                if (described := self._wait(future, f"the topic {name}", {_NO_TOPIC})) is not None:
                    found[name] = described
        return found

    def topic_configs(
        self, names: Iterable[str], ignored: Collection[str] = (_NO_TOPIC, "TOPIC_AUTHORIZATION_FAILED")
    ) -> dict[str, Mapping[str, Any]]:
        """The settings of each topic, without topics that return an error in `ignored`."""
        from confluent_kafka.admin._resource import ResourceType

        found: dict[str, Mapping[str, Any]] = {}
        for chunk in chunked(list(names), _TOPICS_PER_REQUEST):
            for resource, future in self._request_configs(ResourceType.TOPIC, chunk).items():
                if (config := self._wait(future, f"the topic {resource.name}", ignored)) is not None:
                    found[resource.name] = config
        return found

    def _request_configs(self, resource_type: Any, names: Sequence[str]) -> Mapping[Any, Future[Any]]:
        from confluent_kafka.admin._config import ConfigResource

        resources = [ConfigResource(resource_type, name) for name in names]
        futures: Mapping[Any, Future[Any]] = self._driver.describe_configs(resources, request_timeout=self._timeout)
        return futures

    def missing_topics(self, names: Sequence[str], hint: str) -> ConfigError:
        """The error for topics that do not exist. The message lists existing topics."""
        visible = [name for name in sorted(self.topics()) if not name.startswith("__")]
        shown = ", ".join(visible[:10]) + (" …" if len(visible) > 10 else "")
        return ConfigError(
            f"there is no topic {', '.join(names)} on {self.client.bootstrap}; topics there: {shown or 'none'}",
            hint=did_you_mean(names[0], visible) or hint,
        )

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
        hint: str | None = None,
    ) -> bool:
        """Create a topic; False if it exists. With -1 the broker chooses the number."""
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(name, partitions, replication, config=dict(config or {}))
        future = self._driver.create_topics([topic], request_timeout=self._timeout)[name]
        what, exists = f"the creation of topic {name}", {"TOPIC_ALREADY_EXISTS"}
        created = self.client.wait(self._driver, future, what, exists, default=False, hint=hint) is not False
        self.describe_new_topic(name)
        return created

    def describe_new_topic(self, name: str) -> Any:
        """The description of a topic that was just created. Each broker learns of it with a short delay."""
        return wait_until(lambda: self.describe_topics([name]).get(name), self._timeout)

    def add_partitions(self, topic: str, count: int, ignored: Collection[str] = ()) -> None:
        """Increase the partitions of `topic` to `count`. INVALID_PARTITIONS is the error if it has as many or more."""
        from confluent_kafka.cimpl import NewPartitions

        future = self._driver.create_partitions([NewPartitions(topic, count)], request_timeout=self._timeout)[topic]
        self._wait(future, f"{count} partitions of topic {topic}", ignored)

    def alter_topic_config(
        self, topic: str, changes: Mapping[str, str], unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        from confluent_kafka.admin import _config
        from confluent_kafka.admin._resource import ResourceType

        operation, entry = _config.AlterConfigOpType, _config.ConfigEntry
        entries = [entry(n, value, incremental_operation=operation.SET) for n, value in changes.items()]
        entries += [entry(n, None, incremental_operation=operation.DELETE) for n in unset]
        resource = _config.ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        futures = self._driver.incremental_alter_configs(
            [resource], request_timeout=self._timeout, validate_only=validate_only
        )
        self._wait(futures[resource], f"these settings of topic {topic}")

    def delete_topics(self, names: Sequence[str]) -> None:
        for name, future in self._driver.delete_topics(list(names), request_timeout=self._timeout).items():
            self._wait(future, f"the topic {name}", {_NO_TOPIC})
        wait_until(lambda: self.topics().keys().isdisjoint(names), self._timeout)

    def offsets(
        self, positions: Mapping[TopicPartition, str | float], *, committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The offset at a position of each partition, -1 if there is none. For positions see `request_offsets`."""
        return {
            at: self._wait(future).offset for at, future in self.request_offsets(positions, committed=committed).items()
        }

    def request_offsets(
        self, positions: Mapping[TopicPartition, str | float], *, committed: bool = True, timeout: float | None = None
    ) -> dict[TopicPartition, Future[Any]]:
        """Request the `earliest` or `latest` offset of a partition, or the first at or after a time in epoch seconds.

        `latest` is the end for readers of committed records, unless `committed=False`.
        """
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as Position
        from confluent_kafka.admin import _listoffsets

        spec: Any = _listoffsets.OffsetSpec
        edges = {"earliest": spec.earliest, "latest": spec.latest}
        specs = {
            Position(at.topic, at.partition): edges[position]()
            if isinstance(position, str)
            else spec.for_timestamp(max(0, round(position * 1000)))
            for at, position in positions.items()
        }
        if not specs:
            return {}
        futures = self._driver.list_offsets(
            specs,
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=timeout or self._timeout,
        )
        return {TopicPartition(at.topic, at.partition): future for at, future in futures.items()}

    def list_groups(self) -> Any:
        """The groups in `valid`; the errors of brokers that did not answer in `errors`."""
        return self._wait(self._driver.list_consumer_groups(request_timeout=self._timeout), "its groups")

    def describe_groups(self, names: Collection[str]) -> dict[str, Any]:
        """The existing groups of `names`."""
        if not names:
            return {}
        futures = self._driver.describe_consumer_groups(list(names), request_timeout=self._timeout)
        found = {name: self._wait(future, f"the group {name}", {_NO_GROUP}) for name, future in futures.items()}
        return {name: described for name, described in found.items() if described is not None}

    def delete_groups(self, names: Sequence[str]) -> None:
        for name, future in self._driver.delete_consumer_groups(list(names), request_timeout=self._timeout).items():
            self._wait(future, f"the group {name}", {_NO_GROUP})

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset] | None:
        """The committed offsets of `group` for these partitions; None while an open transaction has one of them."""
        with closing(self.client.consumer(group)) as consumer:
            what, open_transaction = f"the group {group}", {"_TIMED_OUT"}
            return self.client.committed(consumer, partitions, _OPEN_TRANSACTION_SECONDS, what, open_transaction)

    def _wait(self, future: Future[Any], what: str = "", ignored: Collection[str] = ()) -> Any:
        return self.client.wait(self._driver, future, what, ignored)
