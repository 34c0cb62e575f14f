"""The stored state of one pipeline as a value, and its transitions. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from headrace.core import format_version
from headrace.errors import DataLoss, OffsetConflict
from headrace.types import Batch, Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
"""The format version of the JSON texts of this module; see `format_version`."""


@dataclass(frozen=True, slots=True)
class RunLease:
    """The registration of an active run. `beat` is its last heartbeat; times are seconds since the epoch.

    `pid_space` is the scope of the pid: the boot id of the kernel and the pid namespace, empty if the system has
    neither. None in a lease of a version that did not write it.
    """

    host: str
    pid: int
    started: float
    beat: float
    pid_space: str | None = None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    def to_json(self) -> str:
        return json.dumps({format_version.KEY: FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw = json.loads(text)
        format_version.read_version(raw, FORMAT, "the heartbeat of a run")
        return cls(**raw)

    def is_same_run(self, other: RunLease | None) -> bool:
        return other is not None and (self.host, self.pid, self.started) == (other.host, other.pid, other.started)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry of the audit log: a change of offsets, its author, time and reason, and the offsets before and after."""

    at: float
    who: str
    action: str
    before: Mapping[TopicPartition, int] = field(default_factory=dict)
    after: Mapping[TopicPartition, int] = field(default_factory=dict)
    note: str = ""
    last_batch: int | None = field(default=None, compare=False)
    """The newest batch when the offsets were changed. None: no change, or an entry of an earlier version."""

    def to_json(self) -> str:
        raw = {format_version.KEY: FORMAT, "at": self.at, "who": self.who, "action": self.action, "note": self.note}
        raw |= {"before": _by_topic(self.before), "after": _by_topic(self.after)}
        return json.dumps(raw if self.last_batch is None else {**raw, "last_batch": self.last_batch})

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw = json.loads(text)
        format_version.read_version(raw, FORMAT, "an entry of the audit log")
        return cls(**{**raw, "before": _by_partition(raw["before"]), "after": _by_partition(raw["after"])})


@dataclass(frozen=True, slots=True)
class State:
    """The progress, and the run that holds the lease."""

    progress: Progress = field(default_factory=Progress)
    run: RunLease | None = None

    def begun(self, batch: Batch) -> State:
        """The state with `batch` journalled; OffsetConflict if it may not follow."""
        refuse_conflict(self.progress, batch)
        return replace(self, progress=replace(self.progress, pending=batch))

    def committed(self, batch: Batch) -> State:
        """The state with every offset at the end of its range in `batch`, and nothing pending; or OffsetConflict."""
        refuse_conflict(self.progress, batch)
        return replace(self, progress=self.progress.advanced(batch))

    def check_epoch(self, batch: Batch) -> State:
        """OffsetConflict if the offsets were moved back since `batch` was planned.

        They may still match the start of the batch, but a sink would take it for the batch that it stored before.
        """
        if batch.epoch != self.progress.epoch and batch != self.progress.pending:
            raise _conflict(batch, "the offsets were moved back since it was planned")
        return self

    def check_lease(self, run: RunLease | None) -> State:
        """OffsetConflict if another run has registered since `run` did; None stands for a handle without a run."""
        if run is not None and self.run is not None and not run.is_same_run(self.run):
            raise OffsetConflict(f"{self.run} has taken over from {run}", hint="stop one of the two runs")
        return self

    def moved(self, expected: Progress, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> State:
        """The state with `offsets`, forward or back, and nothing pending; OffsetConflict if progress is not `expected`.

        Moving offsets back starts a new epoch: sinks that recognise batches by number store the rows again. The sink
        may have stored a pending batch already, so it counts as read.
        """
        if self.progress != expected:
            raise OffsetConflict(
                "the offsets changed since they were read",
                hint="check them again: headrace offsets show",
            )
        before = self.progress
        after = {**before.offsets, **offsets}
        progress = Progress(
            offsets=after,
            topic_ids={**before.topic_ids, **topic_ids},
            # A sink may hold the dropped batch: its id must not be used again.
            last_batch=before.newest,
            epoch=before.epoch + moves_back(before, after),
        )
        return replace(self, progress=progress)

    def imported(self, progress: Progress) -> State:
        """The state with the progress of another store; OffsetConflict if it has progress of its own."""
        if self.progress != Progress():
            raise OffsetConflict(
                "expected no stored offsets of this pipeline, found some",
                hint="choose an empty store, or another pipeline name",
            )
        return replace(self, progress=progress)

    def to_json(self) -> str:
        progress = self.progress
        return json.dumps(
            {
                format_version.KEY: FORMAT,
                "offsets": _by_topic(progress.offsets),
                "pending": json.loads(progress.pending.to_json()) if progress.pending else None,
                "topic_ids": dict(progress.topic_ids),
                "last_batch": progress.last_batch,
                "epoch": progress.epoch,
                "run": asdict(self.run) if self.run else None,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw: dict[str, Any] = json.loads(text)
        format_version.read_version(raw, FORMAT, "the state of this pipeline")
        pending = Batch.from_json(json.dumps(raw["pending"])) if raw["pending"] else None
        progress = Progress(
            _by_partition(raw["offsets"]), pending, raw["topic_ids"], raw["last_batch"], raw.get("epoch", 0)
        )
        return cls(progress, RunLease(**raw["run"]) if raw["run"] else None)


def moves_back(before: Progress, after: Mapping[TopicPartition, int]) -> bool:
    """Whether a move to `after`, which drops the pending batch, would read records again that may be stored already."""
    reached = {**before.offsets, **({r.at: r.until for r in before.pending.ranges} if before.pending else {})}
    return any(after.get(at, -1) < offset for at, offset in reached.items())


def refuse_conflict(progress: Progress, batch: Batch) -> None:
    """Raise OffsetConflict if `batch` may not follow `progress`: the comparison of every compare-and-set."""
    pending = progress.pending
    if pending is not None and pending.missing and pending.id == batch.id and not batch.missing:
        raise DataLoss(
            f"a topic of batch {batch.id} was deleted during its delivery, and the store lost its part of the batch",
            hint="start the pipeline again: on_data_loss decides whether it continues",
        )
    if pending is not None and pending != batch:
        # Also the same ranges under another id: a sink that recognises batches by number would store them twice.
        raise _conflict(batch, f"batch {pending.id} is pending ({_difference(pending, batch)})")
    for topic in sorted({r.at.topic for r in batch.ranges if r.at in progress.offsets}):
        planned = batch.topic_ids.get(topic)
        stored = progress.topic_ids.get(topic)
        if None not in (planned, stored) and planned != stored:
            raise topic_recreated_conflict(batch, topic, stored)
    if moved := progress.behind(batch):
        first = moved[0]
        raise _conflict(batch, f"{first} starts at {first.start}, the stored offset is {progress.offsets[first.at]}")


def topic_recreated_conflict(batch: Batch, topic: str, stored: str | None) -> OffsetConflict:
    """The error if the stored offsets belong to a deleted topic of the same name."""
    planned = batch.topic_ids.get(topic)
    return _conflict(
        batch, f"{topic} was recreated: the batch was planned with topic id {planned}, the store has {stored}"
    )


def _conflict(batch: Batch, reason: str) -> OffsetConflict:
    return OffsetConflict(
        f"batch {batch.id} was refused: {reason}",
        hint="another run of this pipeline is active; stop one of the two",
    )


def _difference(pending: Batch, batch: Batch) -> str:
    if pending.ranges != batch.ranges:
        return "it reads other ranges"
    return "the same ranges under another id" if pending.id != batch.id else "its topics have other ids"


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """`{"clicks": {"0": 10}}`, the format of Spark's startingOffsets."""
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return topics


def _by_partition(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }
