"""A consumer group that nobody joins: its offsets read when they are settled, and committed in transactions."""

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


_UNSETTLED_SECONDS = 2.0  # a living run settles within milliseconds
_FENCING = RetryPolicy(attempts=5)
"""To be the newest producer, while others try the same."""
_AT_ONCE = 16  # clients that are made side by side; each waits for answers most of the time


class Topic(NamedTuple):
    """`id` is None of one that only stands in for a topic of another cluster."""

    id: str | None
    partitions: frozenset[int]


class FencedOffsetGroup:
    """The border to the driver: every method raises ConfigError or RetriableError, and waits some seconds at most.

    `claim` makes this handle the only one whose transactions commit, until somebody else claims: it settles what
    others left open (commits it if it was decided, else aborts it) and fences them for good.
    `token` is another object after each claim and each commit, and None without a claim.

    `names` are those of the topics here, where they are of another cluster. `writers` gives the transactional id under
    which a task may commit the offset of a partition, if tasks do: see `fence_task_producers`. `producing` are settings
    of producers, where they also produce.

    Offsets are asked of a consumer that never joins: see `Client.committed`.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, str],
        name: str,
        *,
        names: PlaceholderTopics | None = None,
        writers: Callable[[TopicPartition], str] | None = None,
    ) -> None:
        self.name = name
        self._names = names or PlaceholderTopics("")
        self._writers = writers
        self.producing: Mapping[str, Any] = {}
        self.token: object | None = None
        self._what = f"the group {name}"
        # Between two requests for an offset that is held by a transaction.
        self._client = Client(bootstrap, options, settings={"retry.backoff.ms": 1, "retry.backoff.max.ms": 5})
        self._admin = Admin(self._client)
        self._producer: Any = None

    @cached_property
    def _consumer(self) -> Any:
        """Made when it is first needed: as soon as it is connected, the broker creates the topic of all groups."""
        return self._client.consumer(self.name)

    @cached_property
    def _membership(self) -> Any:
        return self._consumer.consumer_group_metadata()  # of nobody

    def close(self) -> None:
        self.release()
        if "_consumer" in self.__dict__:
            self._consumer.close()

    def release(self) -> None:
        """Give up the claim, for one's own part."""
        self._producer = self.token = None

    def cluster_id(self) -> str:
        """Asked first: a login that is refused is reported at once."""
        return str(self._admin.describe_cluster().cluster_id)

    def any_offsets(self) -> bool:
        """Whether any group has offsets. To ask for those of a group would create their topic."""
        return "__consumer_offsets" in self._admin.topics()

    def partitions(self) -> list[TopicPartition]:
        """All there are in the cluster: the group may hold any of them."""
        found = [TopicPartition(topic, n) for topic, count in self._admin.topics().items() for n in range(count)]
        return sorted({self._names.there(at) for at in found})

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that exist."""
        asked = {self._names.here(name): name for name in sorted(names)}
        return {
            asked[here]: Topic(
                str(described.topic_id) if here == asked[here] else None, frozenset(p.id for p in described.partitions)
            )
            for here, described in self._admin.describe_topics(asked).items()
        }

    def broker_setting(self, setting: str) -> int:
        return int(self._admin.broker_config()[setting].value)

    def heartbeat(self, partitions: Callable[[], Iterable[TopicPartition]]) -> GroupHeartbeat:
        """Where a run of this group sends its heartbeats: on one of `partitions`."""
        return GroupHeartbeat(self._client, self.name, lambda: [self._names.placed(at) for at in partitions()])

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """What the group holds of these, with every transaction that was decided, and none that is open."""
        here = [self._names.placed(at) for at in partitions]
        return {self._names.there(at): entry for some in chunked(here) for at, entry in self._settled(some).items()}

    def _settled(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The driver waits while a transaction is open over an offset, and says then that its time is up."""
        settle: tuple[Callable[[Sequence[TopicPartition]], None], ...] = (self._settle_open, self._settle_lost)
        for attempt in settle:
            if (found := self._committed(partitions, _UNSETTLED_SECONDS)) is not None:
                return found
            attempt(partitions)
        return self._client.committed(self._consumer, partitions, TIMEOUT, self._what) or {}

    def _committed(
        self, partitions: Sequence[TopicPartition], seconds: float
    ) -> dict[TopicPartition, CommittedOffset] | None:
        """None if they are not settled within `seconds`."""
        return self._client.committed(self._consumer, partitions, seconds, self._what, {"_TIMED_OUT"})

    def _settle_open(self, partitions: Sequence[TopicPartition]) -> None:
        self.refence()
        self._with_each_producer(self._unsettled(partitions), lambda producer, at: None)

    def _settle_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._finish_lost_commit(self._producer)
        self._with_each_producer(self._unsettled(partitions), lambda producer, at: self._finish_lost_commit(producer))

    def _unsettled(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Those of them over which a transaction is open."""
        if self._writers is None:
            return []
        return [self._names.there(at) for at in partitions if self._committed([at], _UNSETTLED_SECONDS / 4) is None]

    def refence(self) -> None:
        """A transaction was left open, which a claim ends; or nobody answers, which a claim tells."""
        self.release()
        self.claim()

    def fence_task_producers(
        self, partitions: Iterable[TopicPartition], anew: Callable[[CommittedOffset], CommittedOffset]
    ) -> None:
        """End the open transactions of other tasks for these, and refuse them from now on.

        A task commits only over the entry that it was planned from, with a producer that is the newest of its
        partition. So each entry is read and put in its place as `anew` has it, by a newer producer: a task that began
        before is fenced, and one that begins later, in a run that does not know yet, finds another entry.
        """
        self._with_each_producer(partitions, lambda producer, at: self._replace(producer, at, anew))

    def _replace(self, producer: Any, at: TopicPartition, anew: Callable[[CommittedOffset], CommittedOffset]) -> None:
        there = self.fetch([at])
        if at in there:
            position = self._names.position(at, anew(there[at]))
            self._bounded(lambda: commit_offsets_in_new_transaction(producer, [position], self._membership))

    def _with_each_producer(
        self, partitions: Iterable[TopicPartition], step: Callable[[Any, TopicPartition], None]
    ) -> None:
        """Take `step` with a producer of each partition's writer, the newest there is."""
        writers = self._writers
        if writers is None:
            return

        def take_step(at: TopicPartition) -> None:
            producer = self._bounded(lambda: self._initialised(writers(at)))
            step(producer, at)

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-take-over") as side_by_side:
            retried = (partial(_FENCING.call, partial(take_step, at), self._is_fenced) for at in partitions)
            for _ in side_by_side.map(lambda call: call(), retried):
                pass

    def _is_fenced(self, error: Exception) -> bool:
        from confluent_kafka import KafkaException

        return isinstance(error.__cause__, KafkaException) and error.__cause__.args[0].name() in FENCED

    def _finish_lost_commit(self, producer: Any) -> None:
        """Finish a transaction whose end a broker forgot to write down with the offsets.

        A broker that dies right after it decided a transaction may, when it comes back, call it complete and leave
        its offsets open for ever (seen on Kafka 4.3 with one broker). The end of any later transaction of the same
        producer in the same partition of `__consumer_offsets` ends them too: so commit one for a group that is kept
        there and that nobody reads.
        """
        from confluent_kafka import TopicPartition as Position

        topics = self._admin.topics()
        count = topics["__consumer_offsets"]
        here = _java_hash(self.name) % count
        names = (f"{self.name}-settled-{number}" for number in range(100 * count))
        neighbour = next(name for name in names if _java_hash(name) % count == here)
        with closing(self._client.consumer(neighbour)) as consumer:
            membership = consumer.consumer_group_metadata()
        topic = next(name for name in sorted(topics) if not name.startswith("__"))
        self._bounded(lambda: commit_offsets_in_new_transaction(producer, [Position(topic, 0, 0)], membership))

    def claim(self) -> None:
        """Fence all others; nothing is done if this was the last to claim, as far as it knows."""
        if self._producer is not None:
            return
        self._refuse_members()
        self._producer = self._bounded(lambda: self._initialised(f"headrace-offsets-{self.name}"))
        self.token = object()

    def commit(
        self, entries: Mapping[TopicPartition, CommittedOffset], produce: Callable[[Any], None] = lambda producer: None
    ) -> bool:
        """Commit all the entries or none, with what `produce` gives to the producer it is called with; False, with
        none committed, if somebody else claimed the group."""
        positions = [self._names.position(at, entry) for at, entry in entries.items()]
        producer = self._producer
        self.release()  # until it is known to have gone well; the next claim settles what is open or decided

        def steps() -> None:
            producer.begin_transaction()
            with _aborted_if_it_fails(producer):
                produce(producer)

        try:
            self._client.call(steps, self._what)
            self._bounded(lambda: commit(producer, positions, self._membership))
        except RetriableError as error:
            if self._is_fenced(error):
                return False
            raise
        self._producer, self.token = producer, object()
        return True

    def _initialised(self, transactional_id: str) -> Any:
        return init_transactions(self._client.producer({**self.producing, "transactional.id": transactional_id}))

    def _bounded(self, step: Callable[[], Any]) -> Any:
        try:
            return self._client.call(lambda: call_with_timeout(step, PATIENCE), self._what)
        except TimeoutError:
            server = self._client.bootstrap
            raise RetriableError(
                f"Kafka at {server} does not answer for {self._what}", hint=f"headrace doctor --bootstrap {server}"
            ) from None

    def _refuse_members(self) -> None:
        from confluent_kafka import ConsumerGroupState

        nobody = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
        found = self._admin.list_groups().valid
        if any(group.group_id == self.name and group.state not in nobody for group in found):
            raise ConfigError(
                f"the group {self.name} has live consumers, which would commit over this pipeline's offsets",
                hint='choose another group: stores.Kafka(…, group="another"), or stop those consumers',
            )


@contextmanager
def _aborted_if_it_fails(producer: Any) -> Iterator[None]:
    """Readers wait at an open transaction until somebody ends it."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            call_with_timeout(lambda: producer.abort_transaction(TIMEOUT), TIMEOUT)
        raise


def _java_hash(text: str) -> int:
    """How a broker chooses the partition of `__consumer_offsets` that keeps a group."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return abs(value - 2**32 if value >= 2**31 else value) % 2**31
