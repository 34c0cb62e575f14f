"""What a store holds of one pipeline, as a value, and every decision about it. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import OffsetConflict
from headrace.types import Batch, Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Run:
    """A live run, as it signs itself. `beat` is when it was last heard of; times are seconds since the epoch."""

    host: str
    pid: int
    started: float
    beat: float

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    def same(self, other: Run | None) -> bool:
        return other is not None and (self.host, self.pid, self.started) == (other.host, other.pid, other.started)


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the audit log: who moved offsets, when, why, from where to where."""

    at: float
    who: str
    action: str
    before: Mapping[TopicPartition, int] = field(default_factory=dict)
    after: Mapping[TopicPartition, int] = field(default_factory=dict)
    note: str = ""

    def to_json(self) -> str:
        before, after = _names(self.before), _names(self.after)
        return json.dumps(
            {"at": self.at, "who": self.who, "action": self.action, "before": before, "after": after, "note": self.note}
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw = json.loads(text)
        return cls(**{**raw, "before": _partitions(raw["before"]), "after": _partitions(raw["after"])})


@dataclass(frozen=True, slots=True)
class State:
    """Progress, and the run that is at it."""

    progress: Progress = field(default_factory=Progress)
    run: Run | None = None

    def begun(self, batch: Batch) -> State:
        """With `batch` journalled, or OffsetConflict."""
        refuse_conflict(self.progress, batch)
        return replace(self, progress=replace(self.progress, pending=batch))

    def committed(self, batch: Batch) -> State:
        """With every range of `batch` moved and nothing pending, or OffsetConflict."""
        refuse_conflict(self.progress, batch)
        return replace(self, progress=self.progress.advanced(batch))

    def moved(self, expected: Progress, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> State:
        """With `offsets` set, in any direction, and nothing pending; OffsetConflict if it is not as `expected`."""
        if self.progress != expected:
            raise OffsetConflict(
                "the offsets changed while the change was being looked at",
                hint="look again: headrace offsets show",
            )
        progress = replace(
            self.progress,
            offsets={**self.progress.offsets, **offsets},
            pending=None,
            topic_ids={**self.progress.topic_ids, **topic_ids},
        )
        return replace(self, progress=progress)

    def adopted(self, progress: Progress) -> State:
        """With the whole progress of another store; OffsetConflict if there is some of its own."""
        if self.progress != Progress():
            raise OffsetConflict(
                "there are offsets of this pipeline already",
                hint="choose an empty store, or another pipeline name",
            )
        return replace(self, progress=progress)

    def to_json(self) -> str:
        progress = self.progress
        return json.dumps(
            {
                "offsets": _names(progress.offsets),
                "pending": json.loads(progress.pending.to_json()) if progress.pending else None,
                "topic_ids": dict(progress.topic_ids),
                "last_batch": progress.last_batch,
                "run": asdict(self.run) if self.run else None,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw: dict[str, Any] = json.loads(text)
        pending = Batch.from_json(json.dumps(raw["pending"])) if raw["pending"] else None
        progress = Progress(_partitions(raw["offsets"]), pending, raw["topic_ids"], raw["last_batch"])
        return cls(progress, Run(**raw["run"]) if raw["run"] else None)


def refuse_conflict(progress: Progress, batch: Batch) -> None:
    """The compare of both compare-and-sets: raise OffsetConflict if `batch` may not follow `progress`."""
    pending = progress.pending
    if pending is not None and pending.ranges != batch.ranges:
        raise _conflict(batch, f"batch {pending.id} is pending with other ranges")
    if moved := progress.behind(batch):
        first = moved[0]
        raise _conflict(batch, f"the store stands at {progress.offsets[first.at]} where {first} would start")


def _conflict(batch: Batch, reason: str) -> OffsetConflict:
    return OffsetConflict(
        f"batch {batch.id} was refused: {reason}",
        hint="another run of this pipeline is active; let one of them finish, or stop it",
    )


def _names(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """`{"clicks": {"0": 10}}`: what Spark's startingOffsets takes too."""
    named: dict[str, dict[str, int]] = {}
    for at in sorted(offsets):
        named.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return named


def _partitions(named: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in named.items()
        for partition, offset in partitions.items()
    }
