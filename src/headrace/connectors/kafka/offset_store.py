"""Offsets in Kafka itself: the consumer group is the truth."""

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
from headrace.kafka.client_options import given
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
TOPIC_SECONDS = 3.0  # a broker knows a new topic a moment after it was made
_REFRESH_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class _Version:
    entries: Mapping[TopicPartition, CommittedOffset]
    token: object | None


class Kafka(OffsetStore):
    """The committed offsets of a consumer group, which is the pipeline's name unless given. Nobody ever joins it.

    What a group has no field for sits in the metadata of the commits. The broker limits it for each partition
    (`offset.metadata.max.bytes`, 4096), so each carries only its own share: the id of its topic, the last batch, and
    its range of the pending batch; the live run signs on one of them. That is some 100 to 200 bytes each, however
    many there are. A position set by another tool counts, and gives up a pending batch that it contradicts.

    Compare-and-set. Commits are transactions of one transactional id, derived from the group. Kafka lets only the
    producer that initialised last commit; it first finishes or aborts what an earlier one left open. A swap is made
    on a read that was taken after its own producer initialised, and compares again if there was none. Then either
    nobody initialised since, so nobody else committed since, and what was read still holds; or somebody did, and the
    transaction is refused: the swap says False. So a zombie is fenced for good, and two that take turns both get on.
    Reading fences nobody; `load`, with which a run starts, does. A tool that commits without a transaction is noticed
    by the next read; between the read and the commit of one swap (milliseconds) it is not.

    Kafka has no room for the audit log: it is a file on this machine, `history/<group>@<cluster>.jsonl` in the state
    directory, written after the commit. Nor does Kafka remember a group for ever: see `durability_warnings`. A file
    beside it, `kafka/<group>@<cluster>.json`, remembers which partitions had offsets, so that a pipeline that ran
    before on this machine stops with DataLoss instead of starting over. Every partition is committed anew each hour of
    a run.
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
        named = given(options)
        refuse_unknown(named)
        self.options = to_librdkafka_config(named)
        self._lock = threading.RLock()
        self._group: FencedOffsetGroup | None = None
        self._files: LocalGroupState | None = None
        self._known: frozenset[TopicPartition] = frozenset()
        self._unsaid: RunLease | None = None
        self._refreshed = float("-inf")
        self._opened_at = 0
        """Seconds: the epoch of a group in which every offset was set by another tool."""

    @property
    def identity(self) -> str:
        return f"stores.Kafka({self.bootstrap!r}" + (f", group={self._name!r})" if self._name else ")")

    def consumer_group(self, pipeline: str) -> str | None:
        return self._name or pipeline

    def open(self, pipeline: str) -> Self:
        self._group = self._made_group(self._name or pipeline)
        self._files = LocalGroupState(self._group.name, self._group.cluster_id())
        self._known, self._unsaid, self._refreshed = frozenset(), None, float("-inf")
        self._opened_at = int(self._now())
        return self

    def open_for_reading(self, pipeline: str) -> str | None:
        group = self._made_group(self._name or pipeline)
        try:
            group.cluster_id()  # a login that is refused is told at once
            if not group.any_offsets():
                return f"no group has offsets in Kafka at {self.bootstrap}"
        finally:
            group.close()
        self.open(pipeline)
        return None

    def _made_group(self, name: str) -> FencedOffsetGroup:
        return FencedOffsetGroup(self.bootstrap, self.options, name)

    def close(self) -> None:
        with self._lock:
            if self._group is not None:
                self._group.close()
                self._group = None

    def load(self) -> Progress:
        """Also fences all other handles: their open transactions are over before this returns."""
        with self._lock:
            self._claimed()
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

    def _claimed(self) -> None:
        self._opened.claim()
        self._known = frozenset()  # find partitions that another tool committed, too

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
                if self._written(entries, new):
                    self._remembered.remember(new.progress)
                    if moved := commit_metadata.foreign(entries):
                        # The newest batch is known only as far as the entries that are left say.
                        note = "set by another tool"
                        last = old.progress.newest
                        self._remembered.append(AuditEntry(self._now(), note, "reset", {}, moved, note, last))
                    if change is not None:
                        self._remembered.append(change)
                    return True
            return False

    def _written(self, entries: Mapping[TopicPartition, CommittedOffset], new: State) -> bool:
        """Turn the group from `entries` into `new`; False if this handle was fenced."""
        everything = self._now() - self._refreshed >= _REFRESH_SECONDS
        writes = commit_metadata.metadata_updates(entries, new, everything=everything)
        self._refuse_unknown(writes.keys() - entries.keys(), new.progress.topic_ids)
        if writes and not self._opened.commit(writes):
            return False
        if writes and everything:
            self._refreshed = self._now()
        self._known |= writes.keys()
        self._unsaid = None if writes else new.run
        return True

    def history(self) -> Sequence[AuditEntry]:
        return self._remembered.history()

    def durability_warnings(self, pipeline: str) -> list[str]:
        group = self._made_group(self._name or pipeline)
        try:
            minutes = group.broker_setting("offsets.retention.minutes")
        finally:
            group.close()
        warning = (
            f"Kafka at {self.bootstrap} forgets the offsets of a group {minutes:,} minutes ({_length(minutes)}) after"
            " their last commit (offsets.retention.minutes): a pipeline stopped for longer cannot resume by itself,"
            " and says so instead of starting over"
        )
        return [warning]

    @property
    def _opened(self) -> FencedOffsetGroup:
        return self.require_open(self._group)

    @property
    def _remembered(self) -> LocalGroupState:
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
            state = replace(state, run=self._unsaid)  # there is no partition to sign on yet
        missing = self._remembered.missing(set(entries))
        return self._without_doubt(state, missing) if missing else state

    def _without_doubt(self, state: State, missing: Mapping[str, frozenset[int]]) -> State:
        """Tell partitions that Kafka forgot (DataLoss) from topics that were deleted, which take their offsets along.

        A topic created again stands at 0 of the old topic, so that whoever compares topic ids sees what happened.
        """
        there = self._opened.topics(missing)
        known = self._remembered.topics
        offsets, topic_ids = dict(state.progress.offsets), dict(state.progress.topic_ids)
        forgotten: list[TopicPartition] = []
        for topic, partitions in missing.items():
            if topic not in there:
                continue
            was = known[topic].id
            if was is None or there[topic].id in (None, was):
                forgotten += [TopicPartition(topic, partition) for partition in sorted(partitions)]
            elif not any(at.topic == topic for at in state.progress.offsets):
                offsets |= {TopicPartition(topic, p): 0 for p in partitions & there[topic].partitions}
                topic_ids[topic] = was
        if forgotten:
            raise self._forgotten(forgotten)
        return replace(state, progress=replace(state.progress, offsets=offsets, topic_ids=topic_ids))

    def _forgotten(self, partitions: Sequence[TopicPartition]) -> DataLoss:
        named = ", ".join(str(at) for at in partitions[:5]) + (" …" if len(partitions) > 5 else "")
        return DataLoss(
            f"the group {self._opened.name} had offsets of {counted(len(partitions), 'partition')} that Kafka at"
            f" {self.bootstrap} no longer has ({named}): it forgets a group after offsets.retention.minutes, or"
            " somebody deleted them",
            hint=f"rm '{self._remembered.marker}' forgets them here too; then the pipeline starts over, or first put"
            " it where it was: headrace offsets reset, headrace offsets import",
        )

    def _refuse_unknown(self, partitions: set[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        """Told soon, for the driver repeats a commit for an unknown topic until its time is up."""
        unknown: list[TopicPartition] = []

        def all_known() -> bool:
            unknown[:] = self._unknown(partitions)
            return not unknown

        if not wait_until(all_known, TOPIC_SECONDS):
            raise ConfigError(
                f"no partition {min(unknown)} on {self.bootstrap}: Kafka keeps offsets only of what exists",
                hint="create the topic, or leave it out; offsets of a source with cluster= go to another store",
            )

    def _unknown(self, partitions: set[TopicPartition]) -> list[TopicPartition]:
        there = self._opened.topics({at.topic for at in partitions})
        return [at for at in partitions if at.topic not in there or at.partition not in there[at.topic].partitions]


def _length(minutes: int) -> str:
    hours = minutes / 60
    return f"{hours / 24:.3g} days" if hours >= 48 else f"{hours:.2g} hours"
