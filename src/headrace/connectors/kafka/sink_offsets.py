"""The offsets of a sink: committed in the transactions of its records, by the driver or by each task."""

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
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from headrace.core.state import RunLease, State
    from headrace.kafka.commit_metadata import CommittedOffset
    from headrace.kafka.offset_group import Topic
    from headrace.types import Batch, Progress, Range, TopicPartition

_LONGEST_MS = 300_000
"""How long a transaction may be open, unless the options say so or the broker allows less."""
_SHORT_MS = 60_000
"""The same where this user may not read the settings of the broker."""
_NOT_OF_TOPICS = re.compile(r"[^a-zA-Z0-9._-]")
_DEFAULTS = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # that of the Java client, so that a key goes where its producers send it
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
    "batch.size": 100_000,  # where topics are named by rows: what is sent at once must fit each of them
    "message.max.bytes": 1_000_000_000,  # each topic has a limit of its own, which is looked at before
}


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """What the commit of a batch changes in the group."""

    entries: Mapping[TopicPartition, CommittedOffset]
    writes: Mapping[TopicPartition, CommittedOffset]
    progress: Progress


class SinkOffsets(Kafka):
    """A consumer group of the target cluster. If a source is another cluster, the target has an empty placeholder for
    each of its topics."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        group: str | None = None,
        options: Mapping[str, Any] | str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(bootstrap, group=group, options=options)
        self._registered: RunLease | None = None
        self._unsure = False
        self._placeholders = PlaceholderTopics("")
        self._home: set[str] = set()
        """Topics of this cluster. A recreated topic has another id, but needs no placeholder."""

    @property
    def group(self) -> str:
        """The consumer group, once it is open."""
        return self._opened.name

    @property
    def client(self) -> Client:
        return Client(self.bootstrap, self.options)

    @property
    def producing(self) -> Mapping[str, Any]:
        """The settings of a producer, beside those of the connection."""
        return self._opened.producing

    def limit_batch_size(self, max_bytes: int) -> None:
        """A batch that is larger than the topic allows would be refused."""
        self._opened.producing = {**self.producing, "batch.size": max_bytes}
        self._opened.release()  # its producer has the old batch.size

    def cluster_id(self) -> str:
        """Needs no `open`."""
        group = self._new_group("")
        try:
            return group.cluster_id()
        finally:
            group.close()

    def open(self, pipeline: str) -> Self:
        super().open(pipeline)
        self._registered = None
        self._opened.producing = {**_DEFAULTS, "transaction.timeout.ms": self._timeout(), **self.options}
        return self

    def set_lease(self, run: RunLease | None, check: Callable[[RunLease | None], None] = lambda held: None) -> None:
        if run is None and self._unsure:
            return  # tasks may still be running: the next run must see that
        with self._lock:
            if self._registered is not None:
                self._current()
            super().set_lease(run, check)
            self._registered = run

    def load(self) -> Progress:
        """Also ends open transactions of tasks of an earlier run, or of a batch that failed."""
        with self._lock:
            self._claim()
            state, version = self.read()
            if self._unsure or state.run is not None:
                self._opened.fence_task_producers(
                    version.entries, partial(commit_metadata.reissue, version.entries, self._opened_at)
                )
                self._unsure, self._registered = False, None
                state, _ = self.read()
            return state.progress

    def plan(self, batch: Batch, *, separately: bool = False) -> PlannedCommit:
        """The commit of `batch`, of each range `separately` if asked for. OffsetConflict as `commit`."""
        with self._lock:
            state, entries = self._current()
            new = state.committed(batch)
            writes = commit_metadata.metadata_updates(entries, new, apart=separately)
            self._check_partitions_exist(writes.keys() - entries.keys(), new.progress.topic_ids)
            return PlannedCommit(entries, writes, new.progress)

    def partition_write(self, r: Range, planned: PlannedCommit) -> PartitionWrite:
        """What the task of one range commits."""
        topic, transactional_id = self._placeholders.local_name(r.at.topic), self.transactional_id(r.at)
        return PartitionWrite(r, topic, planned.entries.get(r.at), planned.writes[r.at], transactional_id)

    @contextmanager
    def committed_by_tasks(self, batch: Batch, planned: PlannedCommit) -> Iterator[None]:
        """Within, the tasks of `batch` run, each of which commits its own range."""
        try:
            yield
        except BaseException as error:
            self._unsure = True  # others of the tasks may be at work still
            if is_raised_on_worker(error, Fenced):
                raise self._fenced(batch) from error
            raise
        self._known |= {r.at for r in batch.ranges}
        reach("kafka: partitions written")
        self._local_state.remember(planned.progress)

    def commit_with(self, batch: Batch, produce: Callable[[Any], None]) -> None:
        """Commit `batch` in one transaction with what `produce` gives to the producer it is called with."""
        with self._lock:
            self._opened.claim()
            planned = self.plan(batch)
            if not self._opened.commit(planned.writes, produce):
                raise self._fenced(batch)
            self._known |= planned.writes.keys()
            self._local_state.remember(planned.progress)

    def transactional_id(self, at: TopicPartition) -> str:
        """For the tasks that write the rows of `at`. A topic has no slash in its name."""
        return f"headrace/{self.group}/{at.topic}/{at.partition}"

    def _current(self) -> tuple[State, dict[TopicPartition, CommittedOffset]]:
        known = self._known
        entries = self._fetch()
        state = self._state(entries)
        if self._registered is not None and not self._registered.is_same_run(state.run):
            if state.run is None and (gone := known - entries.keys()):
                # A topic that is deleted takes its offsets along, and the lease of the run with them.
                topic_check.verify()
                raise RetriableError(f"{self!r}: the offset of {min(gone)} is gone: its topic was deleted")
            raise OffsetConflict(
                f"{self!r}: another run of this pipeline has taken over", hint="let one of them finish"
            )
        return state, entries

    def _fenced(self, batch: Batch) -> HeadraceError:
        """What a newer producer means: OffsetConflict if it is another run; RetriableError if it is another attempt of
        a task, or if the transaction timed out or was aborted manually."""
        self._unsure = True
        with self._lock:
            try:
                state, _ = self._current()
                state.committed(batch)
            except OffsetConflict as error:
                return error
        return RetriableError(
            f"{self!r}: the transaction was ended by somebody else",
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
            if topic not in self._home and (found is None or found.id not in (None, topic_ids.get(topic, found.id))):
                Admin(self.client).create_topic(self._placeholders.add(topic), needed)
            elif found is not None and found.id is None and len(found.partitions) < needed:
                Admin(self.client).add_partitions(
                    self._placeholders.local_name(topic), needed, ignored={"INVALID_PARTITIONS"}
                )
        super()._check_partitions_exist(partitions, topic_ids)

    def _fetch(self) -> dict[TopicPartition, CommittedOffset]:
        entries = super()._fetch()
        self._home |= {at.topic for at in entries if self._placeholders.local_name(at.topic) == at.topic}
        return entries

    def _find_topic(self, topic: str) -> Topic | None:
        """The topic here, or its placeholder; brokers know a new one after a moment."""
        return wait_until(lambda: self._opened.topics([topic]).get(topic), TOPIC_SECONDS)

    def _timeout(self) -> int:
        """How long a transaction may be open, in milliseconds; ConfigError if the broker does not allow as much."""
        asked = self.options.get("transaction.timeout.ms")
        if asked is not None and not asked.isdecimal():
            raise ConfigError(f"transaction.timeout.ms={asked!r} is not a number of milliseconds")
        try:
            most = self._opened.broker_setting("transaction.max.timeout.ms")
        except ConfigError:  # this user may not look at the broker's settings
            return int(asked or _SHORT_MS)
        if asked is not None and int(asked) > most:
            raise ConfigError(
                f"transaction.timeout.ms={asked} is more than Kafka at {self.bootstrap} allows: {most}",
                hint=f'options={{"transaction.timeout.ms": "{most}"}}, or raise transaction.max.timeout.ms there',
            )
        return int(asked or min(_LONGEST_MS, most))


def placeholder_prefix(group: str) -> str:
    """Of the names of placeholder topics. With a hash, as groups and topics may have dots in their names."""
    mark = hashlib.sha256(group.encode()).hexdigest()[:8]
    return f"headrace.{_NOT_OF_TOPICS.sub('_', group)[:80]}-{mark}."
