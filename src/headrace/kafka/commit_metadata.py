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
    begun: PendingRange | None = None
    unread: bool = False
    elsewhere: Elsewhere | None = None


@dataclass(frozen=True, slots=True)
class _MetadataText:
    """The metadata of one partition: its own part, and the state of the whole pipeline when it was written."""

    share: PartitionMetadata
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
            "at": self.share.offset,
            "last": self.last_batch,
        }
        if self.share.topic_id is not None:
            raw["topic"] = self.share.topic_id
        if self.share.begun is not None:
            raw["begun"] = self.share.begun
        if self.share.unread:
            raw["unread"] = 1
        if self.share.elsewhere is not None:
            raw["elsewhere"] = self.share.elsewhere
        if self.run is not None:
            raw["run"] = asdict(self.run)
        if self.epoch:
            raw["epoch"] = self.epoch
        return json.dumps(raw, separators=(",", ":"))


@lru_cache(maxsize=4096)  # the metadata of most partitions rarely changes
def _parsed(entry: CommittedOffset) -> _MetadataText | None:
    """None for a commit of another tool, also if it moved the offset and kept our metadata."""
    if not entry.metadata.startswith('{"headrace":'):
        return None
    try:
        raw = json.loads(entry.metadata)
        format_version.read_version(raw, FORMAT, "the metadata of a committed offset")
        begun = PendingRange(*raw["begun"]) if "begun" in raw else None
        elsewhere = Elsewhere(*raw["elsewhere"]) if "elsewhere" in raw else None
        share = PartitionMetadata(raw["at"], raw.get("topic"), begun, "unread" in raw, elsewhere)
        run = RunLease(**raw["run"]) if "run" in raw else None
        text = _MetadataText(share, raw["headrace"], raw["of"], raw["last"], run, raw.get("epoch", 0))
    except (ValueError, KeyError, TypeError):
        return None
    return text if share.offset == entry.offset else None


def decode_group(group: Mapping[TopicPartition, CommittedOffset], unknown_epoch: int = 0) -> State:
    """Combine a group's entries into the state of the pipeline.

    An entry without our metadata is a position set by another tool, and is accepted. It begins a new epoch, because the
    earlier position is unknown. During a pending batch it abandons that batch, as moving offsets manually does. If
    another tool set every entry, the earlier epoch is unknown, and `unknown_epoch` is used.
    Deleting a topic also deletes its part of a pending batch: such a batch is `missing` ranges and cannot be repeated.
    """
    texts = {at: _parsed(entry) for at, entry in group.items()}
    ours = sorted(((at, text) for at, text in texts.items() if text), key=lambda item: item[1].number)
    newest = ours[-1][1].number if ours else 0
    dropped = bool(ours) and ours[-1][1].partitions > len(group)
    unread = {at for at, text in ours if text.share.unread}
    foreign = len(ours) < len(group)
    pending = _pending(ours, moved=foreign and not dropped)
    last = [text.last_batch for _, text in ours]
    if pending is None:  # the id of a batch that another tool abandoned is not reused
        last += [text.share.begun.batch for _, text in ours if text.share.begun]
    progress = Progress(
        offsets={at: entry.offset for at, entry in group.items() if at not in unread},
        pending=pending,
        topic_ids={at.topic: text.share.topic_id for at, text in ours if text.share.topic_id is not None},
        last_batch=max(last, default=0),
        epoch=max((text.epoch + foreign for _, text in ours), default=unknown_epoch if group else 0),
    )
    runs = (text.run for _, text in ours if text.number == newest and text.run)
    return State(progress, next(runs, None))


def foreign(group: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    """The positions that other tools set."""
    return {at: entry.offset for at, entry in group.items() if _parsed(entry) is None}


def is_complete(group: Mapping[TopicPartition, CommittedOffset]) -> bool:
    """Whether `group` has as many entries as its newest entry records."""
    texts = [text for text in map(_parsed, group.values()) if text]
    return bool(texts) and max(texts, key=lambda text: text.number).partitions <= len(group)


def _pending(ours: Sequence[tuple[TopicPartition, _MetadataText]], *, moved: bool) -> Batch | None:
    begun = {at: (text.share, text.share.begun) for at, text in ours if text.share.begun}
    heads = [(part.batch, part.ranges) for _, part in begun.values()]
    heads += [text.share.elsewhere for _, text in ours if text.share.elsewhere]
    if not heads:
        return None
    batch, count = heads[0]
    if moved and len(begun) < count:
        return None
    ranges = tuple(Range(at, share.offset, part.until) for at, (share, part) in begun.items())
    topic_ids = {at.topic: part.topic_id for at, (_, part) in begun.items() if part.topic_id is not None}
    epoch = max((part.epoch for _, part in begun.values()), default=0)
    return Batch(batch, ranges, topic_ids, missing=count - len(begun), epoch=epoch)


def metadata_updates(
    group: Mapping[TopicPartition, CommittedOffset], new: State, *, everything: bool = False, apart: bool = False
) -> dict[TopicPartition, CommittedOffset]:
    """The entries to commit so that `group` decodes to `new`: those that differ, at least one; or `everything`.

    The last batch and the live run belong to no partition. Entries are numbered, and the newest ones determine them. So
    if entries are committed one by one (`apart`), each contains both.
    """
    texts = {at: _parsed(entry) for at, entry in group.items()}
    number = 1 + max((text.number for text in texts.values() if text), default=0)
    wanted = _shares(new)
    # A transaction cannot delete an entry; the entry can record that nothing was committed.
    wanted |= {at: PartitionMetadata(entry.offset, unread=True) for at, entry in group.items() if at not in wanted}
    have = {at: text.share for at, text in texts.items() if text}
    touched = {at for at, share in wanted.items() if everything or have.get(at) != share}
    if group and touched <= wanted.keys() - group.keys():
        touched.add(min(group))  # an entry that readers know records the new number of partitions
    signed = min(touched, default=None)
    return {
        at: CommittedOffset(
            wanted[at].offset,
            _MetadataText(
                wanted[at],
                number,
                len(wanted),
                new.progress.last_batch,
                new.run if apart or at == signed else None,
                new.progress.epoch,
            ).to_json(),
        )
        for at in sorted(touched)
    }


def reissue(
    group: Mapping[TopicPartition, CommittedOffset], unknown_epoch: int, entry: CommittedOffset
) -> CommittedOffset:
    """The entry that a new run commits: the same offset, without a lease."""
    own = _parsed(entry)
    texts = [text for text in (own, *map(_parsed, group.values())) if text]
    number = 1 + max((text.number for text in texts), default=0)
    last_batch = max((text.last_batch for text in texts), default=0)
    share = own.share if own else PartitionMetadata(entry.offset)
    epoch = max((text.epoch + (own is None) for text in texts), default=unknown_epoch)
    return CommittedOffset(entry.offset, _MetadataText(share, number, len(group), last_batch, None, epoch).to_json())


def _shares(state: State) -> dict[TopicPartition, PartitionMetadata]:
    progress, pending = state.progress, state.progress.pending
    begun: dict[TopicPartition, PendingRange] = {}
    unread: dict[TopicPartition, int] = {}
    elsewhere: dict[TopicPartition, Elsewhere] = {}
    if pending is not None:
        count = len(pending.ranges) + pending.missing
        for r in pending.ranges:
            begun[r.at] = PendingRange(pending.id, r.until, count, pending.topic_ids.get(r.at.topic), pending.epoch)
            if r.at not in progress.offsets:
                unread[r.at] = r.start
        topics = {r.at.topic for r in pending.ranges}
        if others := [at for at in progress.offsets if at.topic not in topics]:
            # If the batch's topics are deleted with their entries, the remaining ones must show that it was pending.
            elsewhere[min(others)] = Elsewhere(pending.id, count)
    return {
        at: PartitionMetadata(offset, progress.topic_ids.get(at.topic), begun.get(at), at in unread, elsewhere.get(at))
        for at, offset in {**progress.offsets, **unread}.items()
    }
