"""Frozen value types that all packages share."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


QUERY_TOPICS = "headrace.query."
"""The prefix of topics that exist in stores only: each stands for a Structured Streaming query."""


@dataclass(frozen=True, order=True, slots=True)
class TopicPartition:
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, order=True, slots=True)
class Range:
    """Half-open `[start, until)` of one topic partition.

    An empty range records a position without reading anything.
    """

    at: TopicPartition
    start: int
    until: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.until:
            raise ValueError(f"expected start <= until in {self.at}, got [{self.start}, {self.until})")

    def __len__(self) -> int:
        return self.until - self.start

    def __str__(self) -> str:
        return f"{self.at} [{self.start}, {self.until})"


@dataclass(frozen=True, slots=True)
class Batch:
    """An id and the ranges that the batch reads, fixed before anything is written.

    The id is a number that increases within a pipeline; the ranges define the content. `topic_ids` are Kafka's ids of
    the topics, which reveal a topic that was recreated under the same name.
    """

    id: int
    ranges: tuple[Range, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict, hash=False)
    missing: int = 0
    """The number of its ranges that the store no longer has, so that the batch cannot be repeated as a whole."""
    epoch: int = 0
    """How often the offsets had been moved back when it was planned: records read again are in a different batch."""
    sources: str = ""
    """A hash of what it reads if the ranges do not tell: a batch of a Structured Streaming query."""

    def __post_init__(self) -> None:
        seen = [r.at for r in self.ranges]
        if len(set(seen)) != len(seen):
            raise ValueError(f"batch {self.id} contains a partition twice")
        object.__setattr__(self, "ranges", tuple(sorted(self.ranges)))

    def __len__(self) -> int:
        """Offsets covered: the records in the batch, or more on compacted and transactional topics."""
        return sum(len(r) for r in self.ranges)

    def __bool__(self) -> bool:
        """Always True: a batch that covers no offsets may still be pending."""
        return True

    @property
    def fingerprint(self) -> str:
        """A short hash; batches share it exactly if they read the same ranges of the same topics in the same epoch."""
        # What is empty is left out, so that fingerprints of earlier versions stay valid.
        rare = [value for value in (self.epoch, self.sources) if value]
        text = json.dumps([self._raw_ranges(), sorted(self.topic_ids.items()), *rare])
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def to_json(self) -> str:
        raw = {"id": self.id, "ranges": self._raw_ranges(), "topic_ids": dict(self.topic_ids)}
        rare = {"missing": self.missing, "epoch": self.epoch, "sources": self.sources}
        return json.dumps({**raw, **{name: value for name, value in rare.items() if value}})

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw: dict[str, Any] = json.loads(text)
        ranges = tuple(Range(TopicPartition(t, p), start, until) for t, p, start, until in raw["ranges"])
        rare = (raw.get("missing", 0), raw.get("epoch", 0), raw.get("sources", ""))
        return cls(raw["id"], ranges, raw["topic_ids"], *rare)

    def _raw_ranges(self) -> list[list[Any]]:
        return [[r.at.topic, r.at.partition, r.start, r.until] for r in self.ranges]


@dataclass(frozen=True, slots=True)
class Progress:
    """The stored progress of a pipeline: committed offsets (of the NEXT record to read) and the pending batch."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    pending: Batch | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    last_batch: int = 0
    epoch: int = 0
    """How often offsets were moved back."""

    def advanced(self, batch: Batch) -> Self:
        """The progress after `batch` was committed."""
        return replace(
            self,
            offsets={**self.offsets, **{r.at: r.until for r in batch.ranges}},
            pending=None,
            topic_ids={**self.topic_ids, **batch.topic_ids},
            last_batch=batch.id,
        )

    @property
    def newest(self) -> int:
        """The id of the newest batch that was begun or committed."""
        return max(self.last_batch, self.pending.id if self.pending else 0)

    def behind(self, batch: Batch) -> list[Range]:
        """The ranges of `batch` that do not start at the offsets of this progress: another process moved them."""
        return [r for r in batch.ranges if self.offsets.get(r.at, r.start) != r.start]
