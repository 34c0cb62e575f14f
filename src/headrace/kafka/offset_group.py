"""A consumer group without members, whose offsets are committed in transactions of one fenced producer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import ConfigError, RetriableError
from headrace.kafka.admin import Admin
from headrace.kafka.client import TIMEOUT, Client, chunked
from headrace.kafka.group_heartbeat import GroupHeartbeat
from headrace.kafka.placeholder_topics import PlaceholderTopics
from headrace.kafka.transactions import (
    FENCED,
    PATIENCE,
    call_with_timeout,
    commit,
    commit_offsets_in_new_transaction,
    init_transactions,
)
from headrace.support.retry import RetryPolicy
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.kafka.commit_metadata import CommittedOffset


_OPEN_TRANSACTION_SECONDS = 2.0  # a live run ends a transaction within milliseconds
_FENCING = RetryPolicy(attempts=5)
"""Attempts to be the newest producer while others also initialise."""
_PARALLEL_PRODUCERS = 16  # each mostly waits for responses


class Topic(NamedTuple):
    """A topic of the cluster. `id` is None for the placeholder of a topic of another cluster."""

    id: str | None
    partitions: frozenset[int]


class FencedOffsetGroup:
    """The offsets of a group. Every method raises ConfigError or RetriableError and returns within seconds.

    `claim` initialises a producer, which permanently fences all other producers of the group and ends their open
    transactions: a decided transaction is committed, any other is aborted. Until another handle claims the group, only
    this producer can commit. `token` is a new object after each claim and each commit; None without a claim.

    `placeholders` maps topics of another cluster. If tasks commit offsets, `writers` returns the transactional id of
    the task that commits a partition: see `fence_task_producers`. `producer_settings` are for producers that also
    send records.

    A consumer that never joins the group reads the offsets: see `Client.committed`.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, str],
        name: str,
        *,
        placeholders: PlaceholderTopics | None = None,
        writers: Callable[[TopicPartition], str] | None = None,
    ) -> None:
        self.name = name
        self._placeholders = placeholders or PlaceholderTopics("")
        self._writers = writers
        self.producer_settings: Mapping[str, Any] = {}
        self.token: object | None = None
        self._what = f"the group {name}"
        # The pause between two requests for an offset that an open transaction has not committed yet.
        self._client = Client(bootstrap, options, settings={"retry.backoff.ms": 1, "retry.backoff.max.ms": 5})
        self._admin = Admin(self._client)
        self._producer: Any = None

    @cached_property
    def _consumer(self) -> Any:
        """Built on first use: when it connects, the broker creates `__consumer_offsets`."""
        return self._client.consumer(self.name)

    @cached_property
    def _group_metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()  # without a member

    def close(self) -> None:
        self.release()
        if "_consumer" in self.__dict__:
            self._consumer.close()

    def release(self) -> None:
        """Forget the claim, without changing Kafka."""
        self._producer = self.token = None

    def cluster_id(self) -> str:
        """The cluster id. The first request of a handle: it reports a refused login at once."""
        return str(self._admin.describe_cluster().cluster_id)

    def any_offsets(self) -> bool:
        """Whether any group has offsets. A request for those of one group would create `__consumer_offsets`."""
        return "__consumer_offsets" in self._admin.topics()

    def partitions(self) -> list[TopicPartition]:
        """All partitions of the cluster: the group may have offsets for any of them."""
        found = [TopicPartition(topic, n) for topic, count in self._admin.topics().items() for n in range(count)]
        return sorted({self._placeholders.to_source(at) for at in found})

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """The topics of `names` that exist."""
        local_names = {self._placeholders.local_name(name): name for name in sorted(names)}
        return {
            local_names[local]: Topic(
                str(described.topic_id) if local == local_names[local] else None,
                frozenset(p.id for p in described.partitions),
            )
            for local, described in self._admin.describe_topics(local_names).items()
        }

    def broker_setting(self, setting: str) -> int:
        return int(self._admin.broker_config()[setting].value)

    def heartbeat(self, partitions: Callable[[], Iterable[TopicPartition]]) -> GroupHeartbeat:
        """The heartbeats of runs of this group, committed for one of `partitions`."""
        return GroupHeartbeat(self._client, self.name, lambda: [self._placeholders.to_local(at) for at in partitions()])

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of these partitions, including all decided transactions and no open one."""
        found: dict[TopicPartition, CommittedOffset] = {}
        for chunk in chunked([self._placeholders.to_local(at) for at in partitions]):
            found |= self._fetch_stable(chunk)
        return {self._placeholders.to_source(at): entry for at, entry in found.items()}

    def _fetch_stable(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Fetch offsets. librdkafka waits for open transactions until a timeout; then this ends them."""
        for step in (self._end_open_transactions, self._finish_lost_commits):
            if (found := self._committed(partitions, _OPEN_TRANSACTION_SECONDS)) is not None:
                return found
            step(partitions)
        return self._client.committed(self._consumer, partitions, TIMEOUT, self._what) or {}

    def _committed(
        self, partitions: Sequence[TopicPartition], seconds: float
    ) -> dict[TopicPartition, CommittedOffset] | None:
        """The committed offsets; None if an open transaction has one of them for `seconds`."""
        return self._client.committed(self._consumer, partitions, seconds, self._what, {"_TIMED_OUT"})

    def _end_open_transactions(self, partitions: Sequence[TopicPartition]) -> None:
        self.refence()
        self._with_each_producer(self._with_open_transaction(partitions), lambda producer, at: None)

    def _finish_lost_commits(self, partitions: Sequence[TopicPartition]) -> None:
        self._finish_lost_commit(self._producer)
        pending = self._with_open_transaction(partitions)
        self._with_each_producer(pending, lambda producer, at: self._finish_lost_commit(producer))

    def _with_open_transaction(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose offset is part of an open transaction."""
        if self._writers is None:
            return []
        pending = [at for at in partitions if self._committed([at], _OPEN_TRANSACTION_SECONDS / 4) is None]
        return [self._placeholders.to_source(at) for at in pending]

    def refence(self) -> None:
        """Claim the group again. This ends an open transaction and fails if no broker answers."""
        self.release()
        self.claim()

    def fence_task_producers(
        self, partitions: Iterable[TopicPartition], reissue: Callable[[CommittedOffset], CommittedOffset]
    ) -> None:
        """End the open transactions of tasks of other runs for these partitions, and fence those tasks.

        A task commits only if the committed offset is the one it was planned with, and only with the newest producer of
        its partition. So a newer producer commits each offset again, with the metadata that `reissue` returns: a task
        that has begun is fenced, and a task that begins later, in a run that was not stopped yet, finds other metadata.
        """
        self._with_each_producer(partitions, lambda producer, at: self._commit_again(producer, at, reissue))

    def _commit_again(
        self, producer: Any, at: TopicPartition, reissue: Callable[[CommittedOffset], CommittedOffset]
    ) -> None:
        if (committed := self.fetch([at]).get(at)) is not None:
            position = self._placeholders.to_position(at, reissue(committed))
            self._call_with_timeout(
                lambda: commit_offsets_in_new_transaction(producer, [position], self._group_metadata)
            )

    def _with_each_producer(
        self, partitions: Iterable[TopicPartition], step: Callable[[Any, TopicPartition], None]
    ) -> None:
        """Call `step` with a new producer for the transactional id of each partition's task."""
        writers = self._writers
        if writers is None:
            return

        def take_step(at: TopicPartition) -> None:
            producer = self._call_with_timeout(lambda: self._init_producer(writers(at)))
            step(producer, at)

        with ThreadPoolExecutor(_PARALLEL_PRODUCERS, thread_name_prefix="headrace-fence") as pool:
            retried = (partial(_FENCING.call, partial(take_step, at), self._is_fenced) for at in partitions)
            for _ in pool.map(lambda call: call(), retried):
                pass

    def _is_fenced(self, error: Exception) -> bool:
        from confluent_kafka import KafkaException

        return isinstance(error.__cause__, KafkaException) and error.__cause__.args[0].name() in FENCED

    def _finish_lost_commit(self, producer: Any) -> None:
        """End a transaction that the broker reports as complete while its offsets are still pending.

        A broker that dies right after it decided a transaction may restart with the transaction complete and its
        offsets pending permanently: every OffsetFetch of the group then fails with UNSTABLE_OFFSET_COMMIT. Seen on
        Kafka 4.3 with one broker, in one of five kills. It is a bug of the broker, so no release of librdkafka fixes
        it; users of other clients report it, too: https://github.com/twmb/franz-go/issues/581.

        The end marker of any later transaction of the same producer in the same partition of `__consumer_offsets`
        releases the offsets. So this commits an offset for another, unused group in that partition.
        """
        from confluent_kafka import TopicPartition as Position

        topics = self._admin.topics()
        count = topics["__consumer_offsets"]
        own = _java_hash(self.name) % count
        names = (f"{self.name}-settled-{number}" for number in range(100 * count))
        other_group = next(name for name in names if _java_hash(name) % count == own)
        with closing(self._client.consumer(other_group)) as consumer:
            metadata = consumer.consumer_group_metadata()
        position = Position(next(name for name in sorted(topics) if not name.startswith("__")), 0, 0)
        self._call_with_timeout(lambda: commit_offsets_in_new_transaction(producer, [position], metadata))

    def claim(self) -> None:
        """Fence all other producers of the group, unless this handle believes that its claim is still the newest."""
        if self._producer is not None:
            return
        self._refuse_members()
        self._producer = self._call_with_timeout(lambda: self._init_producer(f"headrace-offsets-{self.name}"))
        self.token = object()

    def commit(
        self, entries: Mapping[TopicPartition, CommittedOffset], produce: Callable[[Any], None] = lambda producer: None
    ) -> bool:
        """Commit all entries or none, in one transaction with the records that `produce` sends with the producer it is
        given. False, with nothing committed, if another handle claimed the group."""
        positions = [self._placeholders.to_position(at, entry) for at, entry in entries.items()]
        producer = self._producer
        self.release()  # unless this succeeds, the next claim ends the transaction

        def send() -> None:
            producer.begin_transaction()
            with _abort_on_error(producer):
                produce(producer)

        try:
            self._client.call(send, self._what)
            self._call_with_timeout(lambda: commit(producer, positions, self._group_metadata))
        except RetriableError as error:
            if self._is_fenced(error):
                return False
            raise
        self._producer, self.token = producer, object()
        return True

    def _init_producer(self, transactional_id: str) -> Any:
        return init_transactions(
            self._client.producer({**self.producer_settings, "transactional.id": transactional_id})
        )

    def _call_with_timeout(self, step: Callable[[], Any]) -> Any:
        try:
            return self._client.call(lambda: call_with_timeout(step, PATIENCE), self._what)
        except TimeoutError:
            server = self._client.bootstrap
            raise RetriableError(
                f"Kafka at {server} does not answer for {self._what}", hint=f"headrace doctor --bootstrap {server}"
            ) from None

    def _refuse_members(self) -> None:
        from confluent_kafka import ConsumerGroupState

        no_members = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
        found = self._admin.list_groups().valid
        if any(group.group_id == self.name and group.state not in no_members for group in found):
            raise ConfigError(
                f"the group {self.name} has live consumers, which would commit over this pipeline's offsets",
                hint='choose another group: stores.Kafka(…, group="another"), or stop those consumers',
            )


@contextmanager
def _abort_on_error(producer: Any) -> Iterator[None]:
    """Abort a failed transaction: an open one blocks readers of committed records."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            call_with_timeout(lambda: producer.abort_transaction(TIMEOUT), TIMEOUT)
        raise


def _java_hash(text: str) -> int:
    """The hash by which a broker chooses the partition of `__consumer_offsets` for a group."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return abs(value - 2**32 if value >= 2**31 else value) % 2**31
