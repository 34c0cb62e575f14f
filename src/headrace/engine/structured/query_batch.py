"""Whether a sink has a micro-batch already, and the `Batch` under which it is stored. Pure.

Spark repeats a batch whose entry in its commit log is missing. The offsets of the sources do not identify a batch: one
without new input may still emit rows, when the watermark has advanced. Its number within the query does. So a topic of
two partitions stands for the query, whose offsets a transactional sink stores together with the rows. The first one is
the number of the next batch. The second one tells what the newest batch read: an older checkpoint that was restored
plans other batches under the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from headrace.errors import OffsetConflict
from headrace.types import QUERY_TOPICS, Batch, Range, TopicPartition

if TYPE_CHECKING:
    from headrace.types import Progress

_CONTENT_BITS = 32


class Decision(Enum):
    WRITE = auto()
    """It follows the stored batch."""
    SKIP = auto()
    """It is the stored batch."""
    START = auto()
    """It is of a query that the store does not know: its offsets are set to the start of the batch."""


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """A batch of the query with this id, which is in its checkpoint. `name` is the name of the state in the sink.

    `content` is a hash of what it reads.
    """

    name: str
    query: str
    number: int
    content: str

    @property
    def topic(self) -> str:
        """The topic that stands for the query. Its id is that of the query."""
        return f"{QUERY_TOPICS}{self.name}"

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    @property
    def content_at(self) -> TopicPartition:
        return TopicPartition(self.topic, 1)

    @property
    def content_offset(self) -> int:
        """Grows with the number, as offsets do."""
        return (self.number + 1 << _CONTENT_BITS) + int(self.content[: _CONTENT_BITS // 4], 16)

    @property
    def start_offsets(self) -> dict[TopicPartition, int]:
        """The offsets at which the first batch of a query follows."""
        return {self.at: self.number, self.content_at: self.number << _CONTENT_BITS}

    def with_offsets(self, progress: Progress) -> Batch:
        """The batch for a sink that stores the offsets, too, on top of `progress`."""
        start, content = progress.offsets.get(self.content_at, self.content_offset), self.content_offset
        ranges = (Range(self.at, self.number, self.number + 1), Range(self.content_at, start, content))
        return Batch(progress.newest + 1, ranges, {self.topic: self.query}, epoch=progress.epoch)

    def numbered(self, number: int) -> Batch:
        """The batch for a sink without offsets, which recognises it by its number, its fingerprint or its version."""
        ranges = (Range(self.at, self.number, self.number + 1),)
        return Batch(number, ranges, {self.topic: self.query}, sources=self.content)

    def decide(self, progress: Progress) -> Decision:
        """What to do after `progress` was stored. OffsetConflict if batches are missing, or others were stored."""
        stored = progress.offsets.get(self.at)
        if stored is None or progress.topic_ids.get(self.topic) != self.query:
            return Decision.START
        if stored == self.number:
            return Decision.WRITE
        if stored == self.number + 1 and progress.offsets.get(self.content_at) == self.content_offset:
            return Decision.SKIP
        if stored < self.number:
            missing = f"batch {stored}" if stored == self.number - 1 else f"batches {stored} to {self.number - 1}"
            reason = f"{missing} of this query did not go through this sink"
            hint = "another name= begins at this batch; the rows in between must be loaded otherwise"
        else:
            reason = f"the sink has batches up to {stored - 1} of this query, which read other offsets"
            hint = "was the checkpoint restored from a backup? Start with an empty checkpoint, or restore the sink too"
        raise OffsetConflict(f"{self.name}: batch {self.number} was refused: {reason}", hint=hint)
