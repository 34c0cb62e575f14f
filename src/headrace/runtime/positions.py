"""Where a pipeline stands in its topics, and what it reads next: offsets of the store and logs of the cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from headrace import events
from headrace.core.planner import (
    RECREATED,
    Gap,
    first_positions,
    gaps,
    lag,
    lag_skips,
    missing,
    partition_lags,
    plan,
    remaining,
    resolve_start,
    resume_offset,
)
from headrace.core.rate_controller import BatchSizer
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError, DataLoss, OffsetConflict
from headrace.kafka.source_set import source_for_topic
from headrace.kafka.subscription import Partitions
from headrace.runtime.heartbeat import RunPresence
from headrace.support.crashpoints import reach
from headrace.text import counted
from headrace.types import Batch, Progress, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.core.offset_store import OffsetStore
    from headrace.core.planner import Limits, TopicLog
    from headrace.kafka.source import Kafka
    from headrace.kafka.subscription import Subscription
    from headrace.types import TopicPartition


_DELETED = "the topic was deleted"
_GAP, _FRESH_START = "gap", "fresh start"
_MOVES_OF_RUNS = (_GAP, _FRESH_START)
"""Changes that runs make by themselves; all others are an operator's."""
_DROPPED = "are no longer in the store: Kafka deleted them with their topic"


class ClusterMetadata(Protocol):
    """What is asked of a cluster."""

    def logs(self, subscription: Subscription) -> dict[str, TopicLog]: ...

    def there(self, topics: Iterable[str]) -> dict[str, TopicLog]: ...

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def ids(self, topics: Iterable[str]) -> dict[str, str]: ...

    def at_time(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int]: ...

    def lookup_times(
        self, asked: Sequence[Mapping[TopicPartition, float]], timeout: float
    ) -> list[dict[TopicPartition, tuple[int, float]]]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class SourceState:
    """A source, its cluster, and what was last seen there."""

    source: Kafka
    topics: ClusterMetadata
    notes: Callable[[], Sequence[str]] = tuple
    """What to know about the source's settings, once its cluster has answered."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    left_out: frozenset[TopicPartition] = frozenset()
    looked: bool = False
    """Whether this run has looked at it before."""

    @property
    def fresh(self) -> bool:
        """Whether it is still to be set to where every run starts."""
        return not self.source.resume and not self.looked


class PositionTracker:
    """Everything about a run but the delivery of its batches. Opened anew after every failure, made once per run."""

    def __init__(
        self,
        name: str,
        feeds: Sequence[SourceState],
        limits: Limits,
        observe: events.Observer,
        clock: Callable[[], float] = time.monotonic,
        presence: RunPresence | None = None,
    ) -> None:
        self._name = name
        self._presence = presence or RunPresence(name, observe)
        self._feeds = feeds
        self._observe = observe
        self.clock = clock
        self._store: OffsetStore
        self._topic_ids: dict[str, str] = {}
        self._looked = 0.0
        self._waiting_since: float | None = None
        self._known_since: float | None = None
        """Since when this run knows of records that are not stored."""
        self._planned_at = 0.0
        self.metadata_seconds = self.plan_seconds = 0.0
        """How long the cluster and the planner took for the batch that was planned last."""
        self.scheduling_delay = 0.0
        """For how many seconds its records had been known of."""
        self._undelivered: Batch | None = None
        """The batch that was planned last and is not known to be committed."""
        self.progress = Progress()
        self.newest = 0
        """The id of the newest batch that the sink remembers: new ones are numbered above it."""
        self.flow = BatchSizer(limits)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Up to where there is something to read, of each partition."""
        return {at: end for feed in self._feeds for at, end in feed.ends.items()}

    @property
    def lag(self) -> int:
        return lag(self.progress, self.ends)

    @property
    def partition_lags(self) -> dict[TopicPartition, int]:
        """The partitions that have any."""
        return partition_lags(self.progress, self.ends)

    def open(self, store: OffsetStore) -> bool:
        """Sign as the run of this pipeline and load its progress; OffsetConflict if another run is alive.

        False if a stop came while the heartbeat of another run was watched.
        """
        if not self._presence.admit(store):
            return False
        self.load(store)
        self._presence.acquire(store)
        # The run before may have committed until this one signed. Not `load`, which claims a Kafka group once more.
        self.progress = store.read()[0].progress
        return True

    def load(self, store: OffsetStore) -> None:
        self._store = store
        self.progress = store.load()

    def refuse_sink_ahead(self) -> None:
        """OffsetConflict if the sink holds batches that the store has never begun: the store is older than the sink.

        A store that knows of no batch is a new one; what follows a move of the offsets is numbered above the sink's.
        """
        known = self.progress.newest
        if self.newest <= known or not known or self.ignores_stored_offsets:
            return
        changes = [change for change in self._store.history() if change.action not in _MOVES_OF_RUNS]
        moves = [change.last_batch for change in changes if change.last_batch is not None]
        if moves and moves[-1] == known:
            return
        raise OffsetConflict(
            f"{self._name}: the sink holds batch {self.newest} of this pipeline, and the newest batch of the store is"
            f" {known}: was the store restored from an older backup? Rows would be stored twice",
            hint=f"set the offsets to where batch {self.newest} ended, as the log of its run or the table's history"
            " says: headrace offsets seek FILE TOPIC:PARTITION=OFFSET … --execute",
        )

    @property
    def signed(self) -> bool:
        return self._presence.signed

    def release(self, store: OffsetStore) -> None:
        """Say that this run has ended."""
        self._presence.release(store)

    def close(self) -> None:
        """End the heartbeats."""
        self._presence.close()

    @property
    def ignores_stored_offsets(self) -> bool:
        """Whether nothing that is stored counts: a batch that was begun is given up at the first look."""
        return all(feed.fresh for feed in self._feeds)

    def look(self) -> None:
        """Ask for topics and partitions, meet gaps, fix the position of partitions not seen before."""
        began = self.clock()
        found = [(feed, feed.topics.logs(feed.source.subscription)) for feed in self._feeds]
        _refuse_shared(found)
        for feed, logs in found:
            self._topic_ids.update({topic: log.topic_id for topic, log in logs.items()})
            if not feed.looked:
                _refuse_strange(feed, logs)
            at_time = self._at_start(feed, logs)
            if feed.fresh:
                self._start_fresh(feed, logs, at_time)
            else:
                self._skip_gaps(feed, self._with_undelivered(gaps(self.progress, logs)), logs)
                self._skip_gaps(feed, self._deleted_unread(feed, logs), logs)
            self._record_start_positions(feed, logs, at_time)
            self._report(feed, logs)
            feed.ends = {at: end for log in logs.values() for at, end in log.ends.items()}
            feed.looked = True
        self._looked = self.clock()
        self.metadata_seconds = self._looked - began

    def refresh(self) -> None:
        """Ask how far the logs go now, and now and then for everything else."""
        self._presence.between_batches(self._store)
        if self.clock() - self._looked >= min(feed.source.refresh for feed in self._feeds):
            self.look()
            return
        began = self.clock()
        for feed in self._feeds:
            feed.ends = feed.topics.ends(feed.ends)
        self.metadata_seconds = self.clock() - began

    def next(self, *, wait: bool = True) -> Batch | None:
        """The batch that is to be read next. None if there is nothing to read, or, with `wait`, not enough yet."""
        waiting = self.lag
        if not waiting:
            self._waiting_since = self._known_since = None
            return None
        began = self.clock()
        if self._waiting_since is None:
            self._waiting_since = began
        if self._known_since is None:
            self._known_since = began
        if wait and not self.flow.limits.due(waiting, began - self._waiting_since):
            return None  # nor is anything skipped of what is held back
        self._waiting_since = None
        batch = self._planned()
        planned = self.clock()
        asked = self.metadata_seconds
        if batch is not None and self.recreated(batch):
            self.look()
            batch = self._planned()
        self._undelivered = batch
        self._planned_at = self.clock()
        self.plan_seconds, self.metadata_seconds = planned - began, asked + self._planned_at - planned
        self.scheduling_delay = self._planned_at - self._known_since
        return batch

    def _planned(self) -> Batch | None:
        self._skip_lag()
        numbered = replace(self.progress, last_batch=max(self.progress.last_batch, self.newest))
        return plan(numbered, self.ends, self.flow.limits, self._topic_ids, self.flow.budget)

    def recreated(self, batch: Batch, *, deleted: bool = True) -> bool:
        """Whether a topic has another id than the batch was planned with: the same offsets are other records there.

        With `deleted`, also whether one is gone.
        """
        for feed in self._feeds:
            known = {topic: own for topic, own in batch.topic_ids.items() if self._owner(topic) is feed}
            found = feed.topics.ids(known) if known else {}
            if any(found.get(topic, "" if deleted else own) != own for topic, own in known.items()):
                return True
        return False

    def done(self, batch: Batch, seconds: float | None = None, bytes_each: float | None = None) -> None:
        """`batch` was committed; it took so long, and a record of it so many bytes, where that is known."""
        self.progress = self.progress.advanced(batch)
        self._undelivered = None
        # What a batch left behind has waited since that batch was planned.
        self._known_since = self._planned_at if self.lag else None
        if seconds is not None:
            self.flow = self.flow.after(len(batch), seconds, bytes_each)

    def readable(self, pending: Batch, *, parts: bool) -> Batch | None:
        """What of a batch that was begun is to be written again: all, or with `parts` what is left of it, or nothing.

        What is lost is recorded, or DataLoss.
        """
        kept, lost = self._kept(pending)
        topics: list[str | None] = [gap.lost.at.topic for gap in lost]
        reasons = [str(gap) for gap in lost]
        if pending.missing:
            topics.append(None)
            reasons.append(f"{pending.missing} of its {len(pending.ranges) + pending.missing} ranges {_DROPPED}")
        if not reasons:
            return pending
        if any(self._must_not_lose(topic) for topic in topics):
            raise DataLoss(
                f"{self._name}: batch {pending.id} was begun and can no longer be read: {reasons[0]}",
                hint='on_data_loss="earliest" gives the batch up and records it',
            )
        # A sink that recognises a batch as a whole can neither tell how much of it was written nor take a part.
        rest = _part(pending, kept) if parts and kept else None
        given_up = pending.ranges if rest is None else [gap.lost for gap in lost]
        before, after = {r.at: r.start for r in given_up}, {r.at: r.until for r in given_up}
        what = "given up" if rest is None else "repeated without what is lost"
        self._store.append_audit(self._changed(_GAP, before, after, f"batch {pending.id} {what}: {reasons[0]}"))
        for gap in lost if rest is not None else ():
            self._observe(events.GapFound(gap.lost, gap.reason, gap.lost.until))
        return rest

    def _must_not_lose(self, topic: str | None) -> bool:
        feed = self._owner(topic) if topic is not None else None
        sources = [feed.source] if feed else [feed.source for feed in self._feeds]
        return any(source.resume and source.on_data_loss == "fail" for source in sources)

    def _owner(self, topic: str) -> SourceState | None:
        number = source_for_topic({number: feed.source for number, feed in enumerate(self._feeds)}, topic)
        return None if number is None else self._feeds[number]

    def _kept(self, pending: Batch) -> tuple[tuple[Range, ...], list[Gap]]:
        """What the logs still have of the ranges, and what they lack."""
        logs: dict[str, TopicLog] = {}
        for topic in {r.at.topic for r in pending.ranges}:
            feed = self._owner(topic) or self._feeds[0]
            logs.update(feed.topics.there([topic]))
        kept: list[Range] = []
        lost: list[Gap] = []
        for r in pending.ranges:
            log = logs.get(r.at.topic)
            found = [Gap(r, _DELETED)] if log is None else missing(r, log, pending.topic_ids.get(r.at.topic))
            lost += found
            kept += remaining(r, found)
        return tuple(kept), lost

    def _with_undelivered(self, found: Sequence[Gap]) -> list[Gap]:
        """A topic that was recreated takes along the ranges of the batch that was being read from it."""
        batch = self._undelivered
        ranges = {r.at: r for r in batch.ranges} if batch else {}

        def lost(gap: Gap) -> Gap:
            r = ranges.get(gap.lost.at)
            if gap.reason != RECREATED or r is None or self.progress.offsets.get(r.at) == r.until:
                return gap  # a task that commits by itself has moved its partition's offset: its records are stored
            return replace(gap, lost=r)

        return [lost(gap) for gap in found]

    def _deleted_unread(self, feed: SourceState, logs: Mapping[str, TopicLog]) -> list[Gap]:
        """What this run knows to have been in topics that are no more, and has not read."""
        return [
            Gap(Range(at, self.progress.offsets[at], end), _DELETED)
            for at, end in feed.ends.items()
            if at.topic not in logs and self.progress.offsets.get(at, end) < end
        ]

    def _start_fresh(
        self, feed: SourceState, logs: Mapping[str, TopicLog], at_time: Mapping[TopicPartition, int]
    ) -> None:
        """Leave the stored offsets aside: go to where the source starts, whatever lies between."""
        wanted = {
            at: offset for log in logs.values() for at, offset in resolve_start(log, feed.source.first, at_time).items()
        }
        after = {at: offset for at, offset in wanted.items() if at in self.progress.offsets}
        pending = self.progress.pending
        skipped = [
            Gap(Range(at, before, after[at]), "skipped: resume=False")
            for at, before in self.progress.offsets.items()
            if before < after.get(at, 0)
        ]
        if after or pending:
            given_up = [f"batch {pending.id} given up"] if pending else []
            self._move(_FRESH_START, after, "; ".join([*given_up, *map(str, skipped)]), pending)
        if pending:
            self._observe(events.BatchSkipped(pending))
        for gap in skipped:
            self._observe(events.GapFound(gap.lost, gap.reason, gap.lost.until))

    def _skip_gaps(self, feed: SourceState, lost: Sequence[Gap], logs: Mapping[str, TopicLog]) -> None:
        """Stop at a gap, or go on behind it as told: never without a word in the audit log."""
        if not lost:
            return
        policy = feed.source.on_data_loss
        if policy == "fail":
            shown = "; ".join(str(gap) for gap in lost[:5]) + (" …" if len(lost) > 5 else "")
            raise DataLoss(
                f"{self._name}: records that were never processed are gone: {shown}",
                hint='on_data_loss="earliest" goes on behind the gap and records it',
            )
        behind = {
            gap.lost.at: resume_offset(gap, logs[gap.lost.at.topic], policy)
            if gap.lost.at.topic in logs
            else gap.lost.until
            for gap in lost
        }
        self._skip(lost, behind)

    def _skip_lag(self) -> None:
        for feed in self._feeds:
            max_lag = feed.source.max_lag
            if not isinstance(max_lag, int | timedelta) or not lag(self.progress, feed.ends):
                continue
            young: dict[TopicPartition, int] = {}
            if isinstance(max_lag, timedelta):
                young = feed.topics.at_time(feed.ends, datetime.now(UTC) - max_lag)
            if behind := lag_skips(self.progress, feed.ends, max_lag, young):
                self._skip(behind, {gap.lost.at: gap.lost.until for gap in behind})

    def _skip(self, lost: Sequence[Gap], after: Mapping[TopicPartition, int]) -> None:
        self._move(_GAP, after, "; ".join(f"{gap} ({counted(len(gap.lost), 'offset')})" for gap in lost))
        for gap in lost:
            self._observe(events.GapFound(gap.lost, gap.reason, after[gap.lost.at]))

    def _move(self, action: str, after: Mapping[TopicPartition, int], note: str, pending: Batch | None = None) -> None:
        before = {at: self.progress.offsets[at] for at in after}
        # As the store has it: a sink that commits by partition knows another last batch than the one that was written.
        there = self._store.load()
        if there.pending != pending or any(there.offsets.get(at) != offset for at, offset in before.items()):
            raise OffsetConflict(
                f"{self._name}: somebody else moved the offsets that this run was about to move",
                hint="another run of this pipeline is active; let one of them finish, or stop it",
            )
        reach("gap")
        self._store.set_offsets(there, after, self._changed(action, before, after, note), self._topic_ids)
        self.progress = self._store.load()

    def _record_start_positions(
        self, feed: SourceState, logs: Mapping[str, TopicLog], at_time: Mapping[TopicPartition, int]
    ) -> None:
        first = first_positions(self.progress, logs, feed.source.first, at_time, self._topics_seen_before(feed, logs))
        if not first:
            return
        # Written down before the first read: a later start must not choose anew and skip or repeat.
        ids = {topic: self._topic_ids[topic] for topic in {r.at.topic for r in first}}
        anchor = Batch(self.progress.last_batch, first, ids, epoch=self.progress.epoch)
        reach("anchor")
        self._store.commit(anchor)
        self.progress = self.progress.advanced(anchor)
        self._observe(events.PartitionsFound({r.at: r.start for r in first}))

    def _topics_seen_before(self, feed: SourceState, logs: Mapping[str, TopicLog]) -> set[str]:
        """The topics of which a new partition holds nothing from before: `start` is not for them."""
        known = {at.topic for at in self.progress.offsets} & set(logs)
        subscription = feed.source.subscription
        named = isinstance(subscription, Partitions) and not feed.looked and feed.source.first != "stored"
        if feed.fresh or named:
            return set()  # whoever starts fresh, or names a partition more, has not watched it
        # All that a pattern meets later has come since.
        return set(logs) if subscription.names is None and (feed.looked or known) else known

    def _at_start(self, feed: SourceState, logs: Mapping[str, TopicLog]) -> dict[TopicPartition, int]:
        """The offsets at a start that is a time, of partitions that will start there."""
        start = feed.source.first
        if not isinstance(start, datetime):
            return {}
        every = [at for log in logs.values() for at in log.ends]
        return feed.topics.at_time([at for at in every if feed.fresh or at not in self.progress.offsets], start)

    def _report(self, feed: SourceState, logs: Mapping[str, TopicLog]) -> None:
        left_out = frozenset(at for log in logs.values() for at in log.left_out)
        if new := left_out - feed.left_out:
            self._observe(events.PartitionsLeftOut(tuple(sorted(new))))
        if not feed.looked:
            for note in [*feed.notes(), *([] if logs else [f"nothing to read yet: no {feed.source.subscription}"])]:
                self._observe(events.Noted(note))
        feed.left_out = left_out

    def _changed(
        self, action: str, before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], note: str
    ) -> AuditEntry:
        return AuditEntry(time.time(), f"run {self._presence.run}", action, before, after, note)


def _part(batch: Batch, ranges: tuple[Range, ...]) -> Batch:
    """Only `ranges`, and the ids of their topics: that another one was recreated is no reason to refuse the rows."""
    topics = {r.at.topic for r in ranges}
    ids = {topic: own for topic, own in batch.topic_ids.items() if topic in topics}
    return replace(batch, ranges=ranges, missing=0, topic_ids=ids)


def _refuse_shared(found: Sequence[tuple[SourceState, Mapping[str, TopicLog]]]) -> None:
    """ConfigError for a topic that two sources read: its offsets would be one."""
    seen: dict[str, SourceState] = {}
    for feed, logs in found:
        for topic in logs:
            if topic in seen:
                raise ConfigError(
                    f"both {seen[topic].source.subscription} and {feed.source.subscription} read {topic}",
                    hint='a pattern that leaves it out; or name the clusters apart: hr.Kafka(…, cluster="east")',
                )
            seen[topic] = feed


def _refuse_strange(feed: SourceState, logs: Mapping[str, TopicLog]) -> None:
    """ConfigError for an offset to start at of something that is not read."""
    start = feed.source.first
    for at in start if isinstance(start, Mapping) else ():
        if at.topic not in logs or at not in logs[at.topic].ends:
            raise ConfigError(
                f"start: {at} is not read: {feed.source.subscription}", hint="correct start={…}, or what is read"
            )
