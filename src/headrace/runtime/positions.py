"""Tracks the positions of a pipeline in its topics, and plans the next batch."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace import events
from headrace.core.gaps import (
    find_gaps,
    lag_skips,
    part_of,
    resume_offset,
    skipped_by_start,
    still_readable,
    unread_of_deleted,
    with_undelivered,
)
from headrace.core.planner import first_positions, lag, partition_lags, plan, resolve_start
from headrace.core.rate_controller import BatchSizer
from headrace.errors import DataLoss
from headrace.runtime.heartbeat import RunPresence
from headrace.runtime.source_states import SourceStates
from headrace.runtime.stored_positions import StoredPositions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.core.gaps import Gap
    from headrace.core.offset_store import OffsetStore
    from headrace.core.planner import Limits, TopicLog
    from headrace.runtime.source_states import SourceState
    from headrace.types import Batch, Progress, TopicPartition

_DROPPED = "are no longer in the store: Kafka deleted them with their topic"


class PositionTracker:
    """Tracks the positions of a run, handles gaps and plans batches; delivers none.

    Created once per run, and opened again after every failure.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[SourceState],
        limits: Limits,
        observe: events.Observer,
        clock: Callable[[], float] = time.monotonic,
        presence: RunPresence | None = None,
    ) -> None:
        self._name = name
        self._presence = presence or RunPresence(name, observe)
        self._sources = SourceStates(sources)
        self._stored = StoredPositions(name, observe, self._presence)
        self._observe = observe
        self.clock = clock
        self._refreshed = 0.0
        self._waiting_since: float | None = None
        self._known_since: float | None = None
        """Since when this run has known of records that are not stored yet."""
        self._planned_at = 0.0
        self.metadata_seconds = self.plan_seconds = 0.0
        """Seconds that requests to the cluster and the planner took for the last planned batch."""
        self.scheduling_delay = 0.0
        """Seconds for which this run had known of its records when it was planned."""
        self._undelivered: Batch | None = None
        """The last planned batch, while it is not known to be committed."""
        self.sink_last_batch = 0
        """The id of the newest batch that the sink remembers: new batches get higher ids."""
        self._sizer = BatchSizer(limits)

    @property
    def progress(self) -> Progress:
        return self._stored.progress

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The end offset of each partition."""
        return self._sources.ends

    @property
    def lag(self) -> int:
        return lag(self.progress, self.ends)

    @property
    def partition_lags(self) -> dict[TopicPartition, int]:
        """The lag of each partition that has any."""
        return partition_lags(self.progress, self.ends)

    @property
    def holds_lease(self) -> bool:
        return self._presence.holds_lease

    @property
    def ignores_stored_offsets(self) -> bool:
        """Whether the run ignores its stored offsets: the first refresh of metadata drops a pending batch."""
        return self._sources.start_fresh

    def open(self, store: OffsetStore) -> bool:
        """Take the lease of the pipeline and load its progress; OffsetConflict if another run is alive.

        False if it was stopped while it waited for heartbeats of another run.
        """
        if not self._presence.admit(store):
            return False
        self.load(store)
        self._presence.acquire(store)
        # The previous run may have committed until this one had the lease. Not `load`: it fences a Kafka group again.
        self._stored.progress = store.read()[0].progress
        return True

    def load(self, store: OffsetStore) -> None:
        self._stored.load(store)

    def refuse_sink_ahead(self) -> None:
        """OffsetConflict if the sink holds batches that the store has never begun."""
        if not self.ignores_stored_offsets:
            self._stored.refuse_sink_ahead(self.sink_last_batch)

    def release(self, store: OffsetStore) -> None:
        """Remove the lease: this run has ended."""
        self._presence.release(store)

    def close(self) -> None:
        """End the heartbeats."""
        self._presence.close()

    def refresh_metadata(self) -> None:
        """Look up topics and partitions, handle gaps, record the position of partitions not seen before."""
        began = self.clock()
        for state, logs in self._sources.describe():
            self._stored.topic_ids.update({topic: log.topic_id for topic, log in logs.items()})
            if not state.described:
                state.check_start(logs)
            at_time = state.offsets_at_start(logs, self.progress)
            if state.starts_fresh:
                self._start_fresh(state, logs, at_time)
            else:
                gaps = find_gaps(self.progress, logs)
                self._skip_gaps(state, with_undelivered(gaps, self._undelivered, self.progress), logs)
                self._skip_gaps(state, unread_of_deleted(self.progress, state.ends, logs), logs)
            seen = state.topics_seen_before(logs, self.progress)
            if first := first_positions(self.progress, logs, state.source.first, at_time, seen):
                self._stored.record_start(first)
            self._report(state, logs)
            state.ends = {at: end for log in logs.values() for at, end in log.ends.items()}
            state.described = True
        self._refreshed = self.clock()
        self.metadata_seconds = self._refreshed - began

    def poll_ends(self) -> None:
        """Request the current end offsets, and every `refresh` seconds the rest of the metadata."""
        self._presence.between_batches(self._stored.store)
        if self.clock() - self._refreshed >= self._sources.refresh:
            self.refresh_metadata()
            return
        began = self.clock()
        self._sources.poll_ends()
        self.metadata_seconds = self.clock() - began

    def next_batch(self, *, wait: bool = True) -> Batch | None:
        """The next batch to read. None if there are no records or, with `wait`, not enough of them yet."""
        waiting = self.lag
        if not waiting:
            self._waiting_since = self._known_since = None
            return None
        began = self.clock()
        if self._waiting_since is None:
            self._waiting_since = began
        if self._known_since is None:
            self._known_since = began
        if wait and not self._sizer.limits.due(waiting, began - self._waiting_since):
            return None  # records that are held back are not skipped for max_lag either
        self._waiting_since = None
        batch = self._plan()
        planned = self.clock()
        metadata_seconds = self.metadata_seconds
        if batch is not None and self.recreated(batch):
            self.refresh_metadata()
            batch = self._plan()
        self._undelivered = batch
        self._planned_at = self.clock()
        self.plan_seconds, self.metadata_seconds = planned - began, metadata_seconds + self._planned_at - planned
        self.scheduling_delay = self._planned_at - self._known_since
        return batch

    def recreated(self, batch: Batch, *, deleted: bool = True) -> bool:
        """Whether a topic was recreated since the batch was planned or, with `deleted`, was deleted."""
        return self._sources.recreated(batch, deleted=deleted)

    def done(self, batch: Batch, seconds: float | None = None, bytes_each: float | None = None) -> None:
        """Record that `batch` was committed, in `seconds`, with `bytes_each` per record, if known."""
        self._stored.progress = self.progress.advanced(batch)
        self._undelivered = None
        # Records beyond the batch have waited at least since it was planned.
        self._known_since = self._planned_at if self.lag else None
        if seconds is not None:
            self._sizer = self._sizer.update(len(batch), seconds, bytes_each)

    def readable(self, pending: Batch, *, parts: bool) -> Batch | None:
        """The part of a pending batch to write again: the whole batch, with `parts` its remaining ranges, or None.

        Lost ranges are recorded in the audit log, or raise DataLoss.
        """
        kept, lost = still_readable(pending, self._sources.logs_of(pending))
        topics: list[str | None] = [gap.lost.at.topic for gap in lost]
        reasons = [str(gap) for gap in lost]
        if pending.missing:
            topics.append(None)
            reasons.append(f"{pending.missing} of its {len(pending.ranges) + pending.missing} ranges {_DROPPED}")
        if not reasons:
            return pending
        if any(self._sources.must_not_lose(topic) for topic in topics):
            raise DataLoss(
                f"{self._name}: batch {pending.id} was begun and can no longer be read: {reasons[0]}",
                hint='on_data_loss="earliest" abandons the batch and records it',
            )
        # A sink that recognises only whole batches cannot tell how much of one it has, and cannot accept a part.
        rest = part_of(pending, kept) if parts and kept else None
        self._stored.record_lost(pending, reasons[0], lost, rest)
        return rest

    def _plan(self) -> Batch | None:
        self._skip_lag()
        progress = replace(self.progress, last_batch=max(self.progress.last_batch, self.sink_last_batch))
        return plan(progress, self.ends, self._sizer.limits, self._stored.topic_ids, self._sizer.budget)

    def _start_fresh(
        self, state: SourceState, logs: Mapping[str, TopicLog], at_time: Mapping[TopicPartition, int]
    ) -> None:
        start = {
            at: offset
            for log in logs.values()
            for at, offset in resolve_start(log, state.source.first, at_time).items()
        }
        after = {at: offset for at, offset in start.items() if at in self.progress.offsets}
        self._stored.start_fresh(after, skipped_by_start(self.progress, after))

    def _skip_gaps(self, state: SourceState, lost: Sequence[Gap], logs: Mapping[str, TopicLog]) -> None:
        """Stop at a gap or continue after it, as `on_data_loss` says."""
        if not lost:
            return
        policy = state.source.on_data_loss
        if policy == "fail":
            shown = "; ".join(str(gap) for gap in lost[:5]) + (" …" if len(lost) > 5 else "")
            raise DataLoss(
                f"{self._name}: records that were never processed are gone: {shown}",
                hint='on_data_loss="earliest" continues after the gap and records it',
            )
        resume_at = {
            gap.lost.at: resume_offset(gap, logs[gap.lost.at.topic], policy)
            if gap.lost.at.topic in logs
            else gap.lost.until
            for gap in lost
        }
        self._stored.skip(lost, resume_at)

    def _skip_lag(self) -> None:
        for state in self._sources:
            max_lag = state.source.max_lag
            if not isinstance(max_lag, int | timedelta) or not lag(self.progress, state.ends):
                continue
            recent: dict[TopicPartition, int] = {}
            if isinstance(max_lag, timedelta):
                recent = state.cluster.at_time(state.ends, datetime.now(UTC) - max_lag)
            if skipped := lag_skips(self.progress, state.ends, max_lag, recent):
                self._stored.skip(skipped, {gap.lost.at: gap.lost.until for gap in skipped})

    def _report(self, state: SourceState, logs: Mapping[str, TopicLog]) -> None:
        left_out = frozenset(at for log in logs.values() for at in log.left_out)
        if new := left_out - state.left_out:
            self._observe(events.PartitionsLeftOut(tuple(sorted(new))))
        if not state.described:
            for note in [*state.notes(), *([] if logs else [f"nothing to read yet: no {state.source.subscription}"])]:
                self._observe(events.Noted(note))
        state.left_out = left_out
