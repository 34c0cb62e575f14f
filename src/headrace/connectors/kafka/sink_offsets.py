"""The offsets of the Kafka sink, which the driver or each task commits in the transactions of the records."""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.kafka.offset_store import TOPIC_SECONDS, Kafka
from headrace.connectors.kafka.task import Fenced, PartitionWrite
from headrace.core import topic_check
from headrace.core.error_markers import is_raised_on_worker
from headrace.errors import ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.kafka import commit_metadata
from headrace.kafka.admin import Admin
from headrace.kafka.client import Client
from headrace.kafka.offset_group import FencedOffsetGroup
from headrace.kafka.placeholder_topics import PlaceholderTopics
from headrace.support.crashpoints import reach
from headrace.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.core.state import RunLease, State
    from headrace.kafka.commit_metadata import CommittedOffset
    from headrace.kafka.offset_group import Topic
    from headrace.types import Batch, Progress, Range, TopicPartition

_DEFAULT_MS = 300_000
"""The default transaction timeout, if the broker allows as much."""
_FALLBACK_MS = 60_000
"""The default transaction timeout if this user may not read the broker's settings."""
_NOT_IN_TOPIC_NAMES = re.compile(r"[^a-zA-Z0-9._-]")
_DEFAULTS = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # the Java client's partitioner: its producers send a key to the same partition
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
    "batch.size": 100_000,  # if rows name topics: a batch must fit each of the topics
    "message.max.bytes": 1_000_000_000,  # the limit of each topic is checked before
}


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """The changes that the commit of a batch makes to the group."""

    entries: Mapping[TopicPartition, CommittedOffset]
    writes: Mapping[TopicPartition, CommittedOffset]
    progress: Progress


class SinkOffsets(Kafka):
    """A consumer group of the target cluster. If a source is another cluster, the target has an empty placeholder for
    each of its topics."""

    _registered: RunLease | None = None
    _tasks_may_run = False
    """Whether tasks of a failed batch may still be running."""
    _placeholders: PlaceholderTopics
    _local_topics: frozenset[str] = frozenset()
    """Topics of the target cluster. A recreated topic has another id, but needs no placeholder."""

    @property
    def group(self) -> str:
        """The consumer group, once it is open."""
        return self._opened.name

    @property
    def client(self) -> Client:
        return Client(self.bootstrap, self.options)

    @property
    def producer_settings(self) -> Mapping[str, Any]:
        """The settings of a producer in addition to those of the connection."""
        return self._opened.producer_settings

    def limit_batch_size(self, max_bytes: int) -> None:
        """Limit the size of a producer's batches: brokers refuse one that is larger than the topic allows."""
        self._opened.producer_settings = {**self.producer_settings, "batch.size": max_bytes}
        self._opened.release()  # its producer has the old batch.size

    def cluster_id(self) -> str:
        """The id of the target cluster. Works before `open`."""
        group = self._new_group("")
        try:
            return group.cluster_id()
        finally:
            group.close()

    def open(self, pipeline: str) -> Self:
        super().open(pipeline)
        self._registered = None
        self._opened.producer_settings = {**_DEFAULTS, "transaction.timeout.ms": self._timeout(), **self.options}
        return self

    def set_lease(self, run: RunLease | None, check: Callable[[RunLease | None], None] = lambda lease: None) -> None:
        if run is None and self._tasks_may_run:
            return  # tasks may still be running: the next run must see that
        with self._lock:
            if self._registered is not None:
                self._current()
            super().set_lease(run, check)
            self._registered = run

    def load(self) -> Progress:
        """Also ends open transactions of tasks of an earlier run or of a failed batch."""
        with self._lock:
            self._claim()
            state, version = self.read()
            if self._tasks_may_run or state.run is not None:
                self._opened.fence_task_producers(
                    version.entries, partial(commit_metadata.reissue, version.entries, self._opened_at)
                )
                self._tasks_may_run, self._registered = False, None
                state, _ = self.read()
            return state.progress

    def plan(self, batch: Batch, *, separately: bool = False) -> PlannedCommit:
        """Plan the commit of `batch`, or `separately` of each of its ranges. Raises OffsetConflict as `commit` does."""
        with self._lock:
            state, entries = self._current()
            new = state.committed(batch)
            writes = commit_metadata.metadata_updates(entries, new, separately=separately)
            self._check_partitions_exist(writes.keys() - entries.keys(), new.progress.topic_ids)
            return PlannedCommit(entries, writes, new.progress)

    def partition_write(self, r: Range, planned: PlannedCommit) -> PartitionWrite:
        """The commit of the task of one range."""
        topic, transactional_id = self._placeholders.local_name(r.at.topic), self.transactional_id(r.at)
        return PartitionWrite(r, topic, planned.entries.get(r.at), planned.writes[r.at], transactional_id)

    @contextmanager
    def committed_by_tasks(self, batch: Batch, planned: PlannedCommit) -> Iterator[None]:
        """Within the block, the tasks of `batch` run and each of them commits its own range."""
        try:
            yield
        except BaseException as error:
            self._tasks_may_run = True  # other tasks may still be running
            if is_raised_on_worker(error, Fenced):
                raise self._fenced_error(batch) from error
            raise
        self._known |= {r.at for r in batch.ranges}
        reach("kafka: partitions written")
        self._local_state.remember(planned.progress)

    def commit_with(self, batch: Batch, produce: Callable[[Any], None]) -> None:
        """Commit `batch` in one transaction with the records that `produce` sends with the producer it is given."""
        with self._lock:
            self._opened.claim()
            planned = self.plan(batch)
            if not self._opened.commit(planned.writes, produce):
                raise self._fenced_error(batch)
            self._known |= planned.writes.keys()
            self._local_state.remember(planned.progress)

    def transactional_id(self, at: TopicPartition) -> str:
        """The transactional id of the tasks that write the rows of `at`. A topic name has no slash."""
        return f"headrace/{self.group}/{at.topic}/{at.partition}"

    def _current(self) -> tuple[State, dict[TopicPartition, CommittedOffset]]:
        known = self._known
        entries = self._fetch()
        state = self._state(entries)
        if self._registered is not None and not self._registered.is_same_run(state.run):
            if state.run is None and (deleted := known - entries.keys()):
                # Deleting a topic also deletes its offsets, and with them the lease of the run.
                topic_check.verify()
                raise RetriableError(f"{self!r}: the offset of {min(deleted)} is gone: its topic was deleted")
            raise OffsetConflict(
                f"{self!r}: another run of this pipeline has taken over", hint="let one of them finish"
            )
        return state, entries

    def _fenced_error(self, batch: Batch) -> HeadraceError:
        """The error for a fenced producer: OffsetConflict if another run fenced it; RetriableError if another attempt
        of the task did, or if the transaction timed out or was aborted manually."""
        self._tasks_may_run = True
        with self._lock:
            try:
                state, _ = self._current()
                state.committed(batch)
            except OffsetConflict as error:
                return error
        return RetriableError(
            f"{self!r}: another process ended the transaction",
            hint='if it took too long: options={"transaction.timeout.ms": "…"}, or smaller batches',
        )

    def _new_group(self, name: str) -> FencedOffsetGroup:
        self._placeholders = PlaceholderTopics(placeholder_prefix(name))
        return FencedOffsetGroup(
            self.bootstrap, self.options, name, placeholders=self._placeholders, writers=self.transactional_id
        )

    def _check_partitions_exist(self, partitions: set[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        """Creates a placeholder for each topic of another cluster."""
        for topic in {at.topic for at in partitions}:
            needed = 1 + max(at.partition for at in partitions if at.topic == topic)
            found = self._find_topic(topic)
            if topic not in self._local_topics and (
                found is None or found.id not in (None, topic_ids.get(topic, found.id))
            ):
                Admin(self.client).create_topic(self._placeholders.add(topic), needed)
            elif found is not None and found.id is None and len(found.partitions) < needed:
                Admin(self.client).add_partitions(
                    self._placeholders.local_name(topic), needed, ignored={"INVALID_PARTITIONS"}
                )
        super()._check_partitions_exist(partitions, topic_ids)

    def _fetch(self) -> dict[TopicPartition, CommittedOffset]:
        entries = super()._fetch()
        self._local_topics |= {at.topic for at in entries if self._placeholders.local_name(at.topic) == at.topic}
        return entries

    def _find_topic(self, topic: str) -> Topic | None:
        """The topic in this cluster, or its placeholder. Brokers learn of a new topic with a short delay."""
        return wait_until(lambda: self._opened.topics([topic]).get(topic), TOPIC_SECONDS)

    def _timeout(self) -> int:
        """The transaction timeout in milliseconds; ConfigError if the broker does not allow it."""
        given = self.options.get("transaction.timeout.ms")
        if given is not None and not given.isdecimal():
            raise ConfigError(f"transaction.timeout.ms: expected a number of milliseconds, got {given!r}")
        try:
            limit = self._opened.broker_setting("transaction.max.timeout.ms")
        except ConfigError:  # this user may not read the broker's settings
            return int(given or _FALLBACK_MS)
        if given is not None and int(given) > limit:
            raise ConfigError(
                f"transaction.timeout.ms={given} is more than Kafka at {self.bootstrap} allows: {limit}",
                hint=f'options={{"transaction.timeout.ms": "{limit}"}}, or raise transaction.max.timeout.ms there',
            )
        return int(given or min(_DEFAULT_MS, limit))


def placeholder_prefix(group: str) -> str:
    """The prefix of placeholder topics. It has a hash, because names of groups and topics may contain dots."""
    mark = hashlib.sha256(group.encode()).hexdigest()[:8]
    return f"headrace.{_NOT_IN_TOPIC_NAMES.sub('_', group)[:80]}-{mark}."
