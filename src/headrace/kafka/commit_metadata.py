"""Encodes a pipeline's state as commit metadata; each partition carries only its own part. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core import format_version
from headrace.core.state import RunLease, State
from headrace.types import Batch, Progress, Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


FORMAT = 1
"""Format of the text; see `format_version`."""


class CommittedOffset(NamedTuple):
    """What a consumer group stores for one partition: the next offset to read and the committer's metadata."""

    offset: int
    metadata: str


class PendingRange(NamedTuple):
    """A partition's part of the pending batch: the batch id, the end of this range, the batch's number of ranges."""

    batch: int
    until: int
    ranges: int
    topic_id: str | None
    epoch: int = 0


class Elsewhere(NamedTuple):
    """A pending batch that does not read this topic: its id and its number of ranges."""

    batch: int
    ranges: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition's own part of the state. `unread`: the entry is only for a pending batch; nothing was committed."""

    offset: int
    topic_id: str | None = None
    pending_range: PendingRange | None = None
    unread: bool = False
    elsewhere: Elsewhere | None = None


@dataclass(frozen=True, slots=True)
class _MetadataText:
    """The metadata of one partition: its own part, and the state of the whole pipeline when it was written."""

    part: PartitionMetadata
    number: int
    partitions: int
    last_batch: int
    run: RunLease | None
    epoch: int

    def to_json(self) -> str:
        raw: dict[str, Any] = {
            "headrace": self.number,  # first: distinguishes these texts from those of other tools
            format_version.KEY: FORMAT,
            "of": self.partitions,
            "at": self.part.offset,
            "last": self.last_batch,
        }
        if self.part.topic_id is not None:
            raw["topic"] = self.part.topic_id
        if self.part.pending_range is not None:
            raw["begun"] = self.part.pending_range
        if self.part.unread:
            raw["unread"] = 1
        if self.part.elsewhere is not None:
            raw["elsewhere"] = self.part.elsewhere
        if self.run is not None:
            raw["run"] = asdict(self.run)
        if self.epoch:
            raw["epoch"] = self.epoch
        return json.dumps(raw, separators=(",", ":"))


@lru_cache(maxsize=4096)  # the metadata of most partitions rarely changes
def _parse(entry: CommittedOffset) -> _MetadataText | None:
    """None for a commit of another tool, also if it moved the offset and kept the metadata of Headrace."""
    if not entry.metadata.startswith('{"headrace":'):
        return None
    try:
        raw = json.loads(entry.metadata)
        format_version.read_version(raw, FORMAT, "the metadata of a committed offset")
        pending_range = PendingRange(*raw["begun"]) if "begun" in raw else None
        elsewhere = Elsewhere(*raw["elsewhere"]) if "elsewhere" in raw else None
        part = PartitionMetadata(raw["at"], raw.get("topic"), pending_range, "unread" in raw, elsewhere)
        run = RunLease(**raw["run"]) if "run" in raw else None
        text = _MetadataText(part, raw["headrace"], raw["of"], raw["last"], run, raw.get("epoch", 0))
    except (ValueError, KeyError, TypeError):
        return None
    return text if part.offset == entry.offset else None


def decode_group(group: Mapping[TopicPartition, CommittedOffset], unknown_epoch: int = 0) -> State:
    """Combine a group's entries into the state of the pipeline.

    An entry without metadata of Headrace is a position set by another tool, and is accepted. It begins a new epoch,
    because the earlier position is unknown. During a pending batch it abandons that batch, as moving offsets manually
    does. If another tool set every entry, the earlier epoch is unknown, and `unknown_epoch` is used.
    Deleting a topic also deletes its part of a pending batch: such a batch is `missing` ranges and cannot be repeated.
    """
    texts = {at: _parse(entry) for at, entry in group.items()}
    parsed = sorted(((at, text) for at, text in texts.items() if text), key=lambda item: item[1].number)
    newest = parsed[-1][1].number if parsed else 0
    dropped = bool(parsed) and parsed[-1][1].partitions > len(group)
    unread = {at for at, text in parsed if text.part.unread}
    foreign = len(parsed) < len(group)
    pending = _pending(parsed, moved=foreign and not dropped)
    last = [text.last_batch for _, text in parsed]
    if pending is None:  # the id of a batch that another tool abandoned is not reused
        last += [text.part.pending_range.batch for _, text in parsed if text.part.pending_range]
    progress = Progress(
        offsets={at: entry.offset for at, entry in group.items() if at not in unread},
        pending=pending,
        topic_ids={at.topic: text.part.topic_id for at, text in parsed if text.part.topic_id is not None},
        last_batch=max(last, default=0),
        epoch=max((text.epoch + foreign for _, text in parsed), default=unknown_epoch if group else 0),
    )
    runs = (text.run for _, text in parsed if text.number == newest and text.run)
    return State(progress, next(runs, None))


def foreign_offsets(group: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    """The positions that other tools set."""
    return {at: entry.offset for at, entry in group.items() if _parse(entry) is None}


def is_complete(group: Mapping[TopicPartition, CommittedOffset]) -> bool:
    """Whether `group` has as many entries as its newest entry records."""
    texts = [text for text in map(_parse, group.values()) if text]
    return bool(texts) and max(texts, key=lambda text: text.number).partitions <= len(group)


def _pending(parsed: Sequence[tuple[TopicPartition, _MetadataText]], *, moved: bool) -> Batch | None:
    parts = {at: (text.part, text.part.pending_range) for at, text in parsed if text.part.pending_range}
    batches = [(pending.batch, pending.ranges) for _, pending in parts.values()]
    batches += [text.part.elsewhere for _, text in parsed if text.part.elsewhere]
    if not batches:
        return None
    batch, count = batches[0]
    if moved and len(parts) < count:
        return None
    ranges = tuple(Range(at, part.offset, pending.until) for at, (part, pending) in parts.items())
    topic_ids = {at.topic: pending.topic_id for at, (_, pending) in parts.items() if pending.topic_id is not None}
    epoch = max((pending.epoch for _, pending in parts.values()), default=0)
    return Batch(batch, ranges, topic_ids, missing=count - len(parts), epoch=epoch)


def metadata_updates(
    group: Mapping[TopicPartition, CommittedOffset], new: State, *, everything: bool = False, separately: bool = False
) -> dict[TopicPartition, CommittedOffset]:
    """The entries to commit so that `group` decodes to `new`: those that differ, at least one; or `everything`.

    The last batch and the live run belong to no partition. Entries are numbered, and the newest ones determine them. So
    if entries are committed one by one (`separately`), each contains both.
    """
    texts = {at: _parse(entry) for at, entry in group.items()}
    number = 1 + max((text.number for text in texts.values() if text), default=0)
    wanted = _partition_metadata(new)
    # A transaction cannot delete an entry; the entry can record that nothing was committed.
    wanted |= {at: PartitionMetadata(entry.offset, unread=True) for at, entry in group.items() if at not in wanted}
    current = {at: text.part for at, text in texts.items() if text}
    changed = {at for at, part in wanted.items() if everything or current.get(at) != part}
    if group and changed <= wanted.keys() - group.keys():
        changed.add(min(group))  # an existing entry records the new number of partitions
    lease_holder = min(changed, default=None)
    return {
        at: CommittedOffset(
            wanted[at].offset,
            _MetadataText(
                wanted[at],
                number,
                len(wanted),
                new.progress.last_batch,
                new.run if separately or at == lease_holder else None,
                new.progress.epoch,
            ).to_json(),
        )
        for at in sorted(changed)
    }


def reissue(
    group: Mapping[TopicPartition, CommittedOffset], unknown_epoch: int, entry: CommittedOffset
) -> CommittedOffset:
    """The entry that a new run commits: the same offset, without a lease."""
    own = _parse(entry)
    texts = [text for text in (own, *map(_parse, group.values())) if text]
    number = 1 + max((text.number for text in texts), default=0)
    last_batch = max((text.last_batch for text in texts), default=0)
    part = own.part if own else PartitionMetadata(entry.offset)
    epoch = max((text.epoch + (own is None) for text in texts), default=unknown_epoch)
    return CommittedOffset(entry.offset, _MetadataText(part, number, len(group), last_batch, None, epoch).to_json())


def _partition_metadata(state: State) -> dict[TopicPartition, PartitionMetadata]:
    progress, pending = state.progress, state.progress.pending
    ranges: dict[TopicPartition, PendingRange] = {}
    unread: dict[TopicPartition, int] = {}
    elsewhere: dict[TopicPartition, Elsewhere] = {}
    if pending is not None:
        count = len(pending.ranges) + pending.missing
        for r in pending.ranges:
            ranges[r.at] = PendingRange(pending.id, r.until, count, pending.topic_ids.get(r.at.topic), pending.epoch)
            if r.at not in progress.offsets:
                unread[r.at] = r.start
        topics = {r.at.topic for r in pending.ranges}
        if others := [at for at in progress.offsets if at.topic not in topics]:
            # If the batch's topics are deleted with their entries, the remaining ones must show that it was pending.
            elsewhere[min(others)] = Elsewhere(pending.id, count)
    return {
        at: PartitionMetadata(offset, progress.topic_ids.get(at.topic), ranges.get(at), at in unread, elsewhere.get(at))
        for at, offset in {**progress.offsets, **unread}.items()
    }
