"""The offsets of a run in its store, and changes outside of batches, each of which the audit log records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace import events
from headrace.core.state import AuditEntry
from headrace.errors import OffsetConflict
from headrace.support.crashpoints import reach
from headrace.text import counted
from headrace.types import Batch, Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.core.gaps import Gap
    from headrace.core.offset_store import OffsetStore
    from headrace.runtime.heartbeat import RunPresence
    from headrace.types import Range, TopicPartition

_GAP, _FRESH_START = "gap", "fresh start"
_MOVES_OF_RUNS = (_GAP, _FRESH_START)
"""Changes that runs make automatically; all others are made by an operator."""


class StoredPositions:
    """The progress in the store. `topic_ids` are the ids from the last description of the topics."""

    def __init__(self, name: str, observe: events.Observer, presence: RunPresence) -> None:
        self._name = name
        self._observe = observe
        self._presence = presence
        self.store: OffsetStore
        self.progress = Progress()
        self.topic_ids: dict[str, str] = {}

    def load(self, store: OffsetStore) -> None:
        self.store = store
        self.progress = store.load()

    def refuse_sink_ahead(self, sink_last_batch: int) -> None:
        """OffsetConflict if the sink holds batches that the store has never begun: the store is older than the sink.

        A store without any batch is new. Batches after a manual change of offsets get ids above those of the sink.
        """
        known = self.progress.newest
        if sink_last_batch <= known or not known:
            return
        changes = [change for change in self.store.history() if change.action not in _MOVES_OF_RUNS]
        moves = [change.last_batch for change in changes if change.last_batch is not None]
        if moves and moves[-1] == known:
            return
        raise OffsetConflict(
            f"{self._name}: the sink holds batch {sink_last_batch} of this pipeline, and the newest batch of the store"
            f" is {known}: was the store restored from an older backup? Rows would be stored twice",
            hint=f"set the offsets to where batch {sink_last_batch} ended, as the log of its run or the table's history"
            " says: headrace offsets seek FILE TOPIC:PARTITION=OFFSET … --execute",
        )

    def record_start(self, first: tuple[Range, ...]) -> None:
        """Store the start positions of new partitions, so that a later start does not choose others."""
        ids = {topic: self.topic_ids[topic] for topic in {r.at.topic for r in first}}
        start = Batch(self.progress.last_batch, first, ids, epoch=self.progress.epoch)
        reach("anchor")
        self.store.commit(start)
        self.progress = self.progress.advanced(start)
        self._observe(events.PartitionsFound({r.at: r.start for r in first}))

    def start_fresh(self, after: Mapping[TopicPartition, int], skipped: Sequence[Gap]) -> None:
        """Move to the start position of the source, whatever lies between, and drop the pending batch."""
        pending = self.progress.pending
        if after or pending:
            abandoned = [f"batch {pending.id} abandoned"] if pending else []
            self._move(_FRESH_START, after, "; ".join([*abandoned, *map(str, skipped)]), pending)
        if pending:
            self._observe(events.BatchSkipped(pending))
        for gap in skipped:
            self._observe(events.GapFound(gap.lost, gap.reason, gap.lost.until))

    def skip(self, lost: Sequence[Gap], after: Mapping[TopicPartition, int]) -> None:
        """Continue after the gaps, at `after`."""
        self._move(_GAP, after, "; ".join(f"{gap} ({counted(len(gap.lost), 'offset')})" for gap in lost))
        for gap in lost:
            self._observe(events.GapFound(gap.lost, gap.reason, after[gap.lost.at]))

    def record_lost(self, batch: Batch, reason: str, lost: Sequence[Gap], rest: Batch | None) -> None:
        """Record the lost part of a pending batch; `rest` is its remaining part."""
        skipped = batch.ranges if rest is None else [gap.lost for gap in lost]
        before, after = {r.at: r.start for r in skipped}, {r.at: r.until for r in skipped}
        outcome = "abandoned" if rest is None else "repeated without what is lost"
        self.store.append_audit(self._entry(_GAP, before, after, f"batch {batch.id} {outcome}: {reason}"))
        for gap in lost if rest is not None else ():
            self._observe(events.GapFound(gap.lost, gap.reason, gap.lost.until))

    def _move(self, action: str, after: Mapping[TopicPartition, int], note: str, pending: Batch | None = None) -> None:
        before = {at: self.progress.offsets[at] for at in after}
        # Use the progress in the store: a sink that commits by partition may have another last batch than this run.
        stored = self.store.load()
        if stored.pending != pending or any(stored.offsets.get(at) != offset for at, offset in before.items()):
            raise OffsetConflict(
                f"{self._name}: another process moved the offsets that this run was about to move",
                hint="another run of this pipeline is active; let one of them finish, or stop it",
            )
        reach("gap")
        self.store.set_offsets(stored, after, self._entry(action, before, after, note), self.topic_ids)
        self.progress = self.store.load()

    def _entry(
        self, action: str, before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], note: str
    ) -> AuditEntry:
        return AuditEntry(time.time(), f"run {self._presence.run}", action, before, after, note)
