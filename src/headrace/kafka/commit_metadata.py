"""A pipeline's state as the commit metadata of its partitions, each carrying only its own share. Pure."""

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
"""Of the text; see `format_version`."""


class CommittedOffset(NamedTuple):
    """What a consumer group holds of one partition: the next offset to read, and a text of the committer's own."""

    offset: int
    metadata: str


class PendingRange(NamedTuple):
    """A partition's part in the pending batch: its id, where this range ends, how many ranges the batch has."""

    batch: int
    until: int
    ranges: int
    topic_id: str | None
    epoch: int = 0


class Elsewhere(NamedTuple):
    """A pending batch that reads none of this topic: its id, and how many ranges it has."""

    batch: int
    ranges: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """What one partition knows of itself. `unread`: it stands here for a begun batch alone, nothing was committed."""

    offset: int
    topic_id: str | None = None
    begun: PendingRange | None = None
    unread: bool = False
    elsewhere: Elsewhere | None = None


@dataclass(frozen=True, slots=True)
class _MetadataText:
    """The metadata of one partition: its share, and what the whole pipeline knew when it was written."""

    share: PartitionMetadata
    number: int
    partitions: int
    last_batch: int
    run: RunLease | None
    epoch: int

    def to_json(self) -> str:
        raw: dict[str, Any] = {
            "headrace": self.number,  # first: it tells these texts from those of other tools
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


@lru_cache(maxsize=4096)  # most partitions say what they said before
def _parsed(entry: CommittedOffset) -> _MetadataText | None:
    """None for a commit that is not ours, or that somebody moved and kept our words."""
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
    """The state that a group's entries add up to.

    An entry that is not ours is a position set by another tool, and counts. It begins a new epoch: where the partition
    stood before, it does not say. Set under a pending batch it gives that batch up, as moving offsets by hand does.
    Where every entry was set by another tool, nothing tells the epoch before: it is `unknown_epoch`.
    A topic that was deleted took its part of the pending batch with it: such a batch is `missing` ranges, and cannot be
    repeated.
    """
    texts = {at: _parsed(entry) for at, entry in group.items()}
    ours = sorted(((at, text) for at, text in texts.items() if text), key=lambda item: item[1].number)
    newest = ours[-1][1].number if ours else 0
    dropped = bool(ours) and ours[-1][1].partitions > len(group)
    unread = {at for at, text in ours if text.share.unread}
    foreign = len(ours) < len(group)
    pending = _pending(ours, moved=foreign and not dropped)
    last = [text.last_batch for _, text in ours]
    if pending is None:  # what another tool gave up keeps its number
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
    """The positions that another tool set."""
    return {at: entry.offset for at, entry in group.items() if _parsed(entry) is None}


def is_complete(group: Mapping[TopicPartition, CommittedOffset]) -> bool:
    """Whether these are all the entries of the group, as far as they know."""
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
    """The entries to commit so that `group` adds up to `new`: those that differ, at least one, or all of them.

    Last batch and live run belong to no partition. Each entry is numbered, and the newest speak for the pipeline; so
    where they are committed one by one (`apart`), each says it all.
    """
    texts = {at: _parsed(entry) for at, entry in group.items()}
    number = 1 + max((text.number for text in texts.values() if text), default=0)
    wanted = _shares(new)
    # An entry cannot be taken back in a transaction; it can say that nothing was committed.
    wanted |= {at: PartitionMetadata(entry.offset, unread=True) for at, entry in group.items() if at not in wanted}
    have = {at: text.share for at, text in texts.items() if text}
    touched = {at for at, share in wanted.items() if everything or have.get(at) != share}
    if group and touched <= wanted.keys() - group.keys():
        touched.add(min(group))  # partitions that are new show in one that readers know
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
    """The entry that a new run commits: the same offset, without a heartbeat."""
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
            # The batch's topics may be deleted, and their entries with them: what is left must show that it was begun.
            elsewhere[min(others)] = Elsewhere(pending.id, count)
    return {
        at: PartitionMetadata(offset, progress.topic_ids.get(at.topic), begun.get(at), at in unread, elsewhere.get(at))
        for at, offset in {**progress.offsets, **unread}.items()
    }
