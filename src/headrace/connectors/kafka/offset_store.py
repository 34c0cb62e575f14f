"""Offsets in Kafka: the committed offsets of a consumer group."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.kafka.local_state import LocalGroupState
from headrace.core.offset_store import OffsetStore
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError, DataLoss
from headrace.kafka import commit_metadata
from headrace.kafka.addresses import brokers
from headrace.kafka.client_options import parse_options
from headrace.kafka.client_security import to_librdkafka_config
from headrace.kafka.config_checks import refuse_unknown
from headrace.kafka.offset_group import FencedOffsetGroup
from headrace.support.polling import wait_until
from headrace.support.retry import RetryPolicy
from headrace.text import counted
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from headrace.core.offset_store import Heartbeats
    from headrace.core.state import RunLease, State
    from headrace.kafka.commit_metadata import CommittedOffset
    from headrace.types import Progress

_CLAIMS = RetryPolicy(attempts=5)
TOPIC_SECONDS = 3.0  # brokers learn of a new topic with a short delay
_REFRESH_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class _Version:
    entries: Mapping[TopicPartition, CommittedOffset]
    token: object | None


class Kafka(OffsetStore):
    """The committed offsets of a consumer group, by default named like the pipeline. The group never has members.

    **State.** A group has fields for offsets only; all other state is in the commit metadata. The broker limits its
    size per partition (`offset.metadata.max.bytes`, 4096), so each partition stores its own part: the id of its topic,
    the last batch, and its range of the pending batch; one partition stores the lease of the run. That is 100 to 200
    bytes each, for any number of partitions. A position set by another tool is accepted, and a pending batch that it
    contradicts is abandoned.

    **Compare-and-set.** Commits are transactions of one transactional id, derived from the group. Only the producer
    that initialised last can commit; `init_transactions` commits or aborts an open transaction of an earlier producer.
    A swap uses a read taken after its own producer initialised, or reads and compares again. Either no other producer
    has initialised since, so nothing else was committed and the read is still valid; or one has, and Kafka refuses the
    transaction: the swap returns False. So a zombie is fenced permanently, and two alternating runs both make progress.
    Reading does not fence other producers; `load`, which starts a run, does. The next read sees a commit that another
    tool made without a transaction, but not if it comes between the read and the commit of one swap (milliseconds).

    **Local files.** Kafka cannot store the audit log: it is a file on this machine, `history/<group>@<cluster>.jsonl`
    in the state directory, written after the commit. Kafka also deletes idle groups: see `durability_warnings`. The
    file `kafka/<group>@<cluster>.json` there records which partitions had offsets, so that a pipeline that ran before
    on this machine stops with DataLoss instead of starting over. A run commits every partition again once per hour.
    """

    _now: Callable[[], float] = staticmethod(time.time)

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        group: str | None = None,
        options: Mapping[str, Any] | str | PathLike[str] | None = None,
    ) -> None:
        self.bootstrap = brokers(bootstrap)
        self._name = group
        parsed = parse_options(options)
        refuse_unknown(parsed)
        self.options = to_librdkafka_config(parsed)
        self._lock = threading.RLock()
        self._group: FencedOffsetGroup | None = None
        self._files: LocalGroupState | None = None
        self._known: frozenset[TopicPartition] = frozenset()
        self._unwritten_lease: RunLease | None = None
        self._refreshed = float("-inf")
        self._opened_at = 0
        """In seconds. The epoch of a group in which another tool set every offset."""

    @property
    def identity(self) -> str:
        return f"stores.Kafka({self.bootstrap!r}" + (f", group={self._name!r})" if self._name else ")")

    def consumer_group(self, pipeline: str) -> str | None:
        return self._name or pipeline

    def open(self, pipeline: str) -> Self:
        self._group = self._new_group(self._name or pipeline)
        self._files = LocalGroupState(self._group.name, self._group.cluster_id())
        self._known, self._unwritten_lease, self._refreshed = frozenset(), None, float("-inf")
        self._opened_at = int(self._now())
        return self

    def open_for_reading(self, pipeline: str) -> str | None:
        group = self._new_group(self._name or pipeline)
        try:
            group.cluster_id()  # reports a refused login at once
            if not group.any_offsets():
                return f"no group has offsets in Kafka at {self.bootstrap}"
        finally:
            group.close()
        self.open(pipeline)
        return None

    def _new_group(self, name: str) -> FencedOffsetGroup:
        return FencedOffsetGroup(self.bootstrap, self.options, name)

    def close(self) -> None:
        with self._lock:
            if self._group is not None:
                self._group.close()
                self._group = None

    def load(self) -> Progress:
        """Also fences all other producers of the group and ends their open transactions."""
        with self._lock:
            self._claim()
            return super().load()

    def lease(self) -> RunLease | None:
        with self._lock:
            run = self.read()[0].run
            if run is None:
                return None
            with self._opened.heartbeat(lambda: self._known).open(self._opened.name) as beats:
                return beats.newest(run) or run

    def heartbeat(self, run: RunLease) -> bool:
        raise NotImplementedError("a commit to the group would fence its own run: see heartbeat_handle")

    def heartbeat_handle(self) -> Heartbeats:
        return self._opened.heartbeat(lambda: self._known)

    def _claim(self) -> None:
        self._opened.claim()
        self._known = frozenset()  # also find partitions that another tool committed

    def read(self) -> tuple[State, Any]:
        with self._lock:
            group = self._opened
            entries = self._fetch()
            return self._state(entries), _Version(entries, group.token)

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        with self._lock:
            token, entries = version.token, version.entries
            for _ in _CLAIMS.tries():
                self._opened.claim()
                if token is not self._opened.token:
                    token, entries = self._opened.token, self._fetch()
                    if self._state(entries) != old:
                        return False
                if self._commit_state(entries, new):
                    self._local_state.remember(new.progress)
                    if moved := commit_metadata.foreign_offsets(entries):
                        # The last batch in the remaining metadata: the metadata of the moved partitions is lost.
                        note = "set by another tool"
                        last = old.progress.newest
                        self._local_state.append(AuditEntry(self._now(), note, "reset", {}, moved, note, last))
                    if change is not None:
                        self._local_state.append(change)
                    return True
            return False

    def _commit_state(self, entries: Mapping[TopicPartition, CommittedOffset], new: State) -> bool:
        """Commit what differs between `entries` and `new`; False if this producer is fenced."""
        everything = self._now() - self._refreshed >= _REFRESH_SECONDS
        writes = commit_metadata.metadata_updates(entries, new, everything=everything)
        self._check_partitions_exist(writes.keys() - entries.keys(), new.progress.topic_ids)
        if writes and not self._opened.commit(writes):
            return False
        if writes and everything:
            self._refreshed = self._now()
        self._known |= writes.keys()
        self._unwritten_lease = None if writes else new.run
        return True

    def history(self) -> Sequence[AuditEntry]:
        return self._local_state.history()

    def durability_warnings(self, pipeline: str) -> list[str]:
        group = self._new_group(self._name or pipeline)
        try:
            minutes = group.broker_setting("offsets.retention.minutes")
        finally:
            group.close()
        warning = (
            f"Kafka at {self.bootstrap} forgets the offsets of a group {minutes:,} minutes ({_in_days(minutes)}) after"
            " their last commit (offsets.retention.minutes): a pipeline stopped for longer cannot resume by itself:"
            " it stops with an error instead of starting over"
        )
        return [warning]

    @property
    def _opened(self) -> FencedOffsetGroup:
        return self.require_open(self._group)

    @property
    def _local_state(self) -> LocalGroupState:
        return self.require_open(self._files)

    def _fetch(self) -> dict[TopicPartition, CommittedOffset]:
        entries = self._opened.fetch(self._known)
        if not commit_metadata.is_complete(entries):
            entries = self._opened.fetch(self._opened.partitions())
            self._known = frozenset(entries)
        return entries

    def _state(self, entries: Mapping[TopicPartition, CommittedOffset]) -> State:
        state = commit_metadata.decode_group(entries, self._opened_at)
        if not entries:
            state = replace(state, run=self._unwritten_lease)  # no partition can store it yet
        missing = self._local_state.missing(set(entries))
        return self._find_forgotten(state, missing) if missing else state

    def _find_forgotten(self, state: State, missing: Mapping[str, frozenset[int]]) -> State:
        """DataLoss for partitions whose offsets expired. Deleting a topic also deletes its offsets, which is no loss.

        A recreated topic gets offset 0 with the id of the old topic, so that a comparison of topic ids shows it.
        """
        existing = self._opened.topics(missing)
        known = self._local_state.topics
        offsets, topic_ids = dict(state.progress.offsets), dict(state.progress.topic_ids)
        forgotten: list[TopicPartition] = []
        for topic, partitions in missing.items():
            if topic not in existing:
                continue
            old_id = known[topic].id
            if old_id is None or existing[topic].id in (None, old_id):
                forgotten += [TopicPartition(topic, partition) for partition in sorted(partitions)]
            elif not any(at.topic == topic for at in state.progress.offsets):
                offsets |= {TopicPartition(topic, p): 0 for p in partitions & existing[topic].partitions}
                topic_ids[topic] = old_id
        if forgotten:
            raise self._offsets_lost_error(forgotten)
        return replace(state, progress=replace(state.progress, offsets=offsets, topic_ids=topic_ids))

    def _offsets_lost_error(self, partitions: Sequence[TopicPartition]) -> DataLoss:
        named = ", ".join(str(at) for at in partitions[:5]) + (" …" if len(partitions) > 5 else "")
        return DataLoss(
            f"the group {self._opened.name} had offsets of {counted(len(partitions), 'partition')} that Kafka at"
            f" {self.bootstrap} no longer has ({named}): they expire after offsets.retention.minutes, or"
            " were deleted",
            hint=f"rm '{self._local_state.marker}' also removes them here; then the pipeline starts over,"
            " or set its offsets first: headrace offsets reset, headrace offsets import",
        )

    def _check_partitions_exist(self, partitions: set[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        """Raise ConfigError early: librdkafka repeats a commit for an unknown topic until it times out."""
        missing: list[TopicPartition] = []

        def exist() -> bool:
            missing[:] = self._missing_partitions(partitions)
            return not missing

        if not wait_until(exist, TOPIC_SECONDS):
            raise ConfigError(
                f"there is no partition {min(missing)} on {self.bootstrap}: Kafka stores offsets"
                " of existing partitions only",
                hint="create the topic, or leave it out; offsets of a source with cluster= go to another store",
            )

    def _missing_partitions(self, partitions: set[TopicPartition]) -> list[TopicPartition]:
        topics = self._opened.topics({at.topic for at in partitions})
        return [at for at in partitions if at.topic not in topics or at.partition not in topics[at.topic].partitions]


def _in_days(minutes: int) -> str:
    hours = minutes / 60
    return f"{hours / 24:.3g} days" if hours >= 48 else f"{hours:.2g} hours"
