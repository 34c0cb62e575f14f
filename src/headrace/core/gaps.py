"""Gaps: unread records that can no longer be read, or that are skipped. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.text import counted
from headrace.types import Batch, Range

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from headrace.core.planner import TopicLog
    from headrace.types import Progress, TopicPartition

RECREATED = "the topic was deleted and created again"
_DELETED = "the topic was deleted"


@dataclass(frozen=True, slots=True)
class Gap:
    """A range `[start, until)` of unread records that can no longer be read, and the reason."""

    lost: Range
    reason: str
    cut_back: bool = False
    """The log was cut back to before the offset: all records before its new end have been read."""

    def __str__(self) -> str:
        return f"{self.lost}: {self.reason}"


def lag_skips(
    progress: Progress,
    ends: Mapping[TopicPartition, int],
    max_lag: int | timedelta,
    since: Mapping[TopicPartition, int],
) -> list[Gap]:
    """The records beyond `max_lag`, per partition. If `max_lag` is a time, `since` has the first offset that is recent
    enough, for partitions that have one."""
    found = []
    for at, end in ends.items():
        offset = progress.offsets.get(at)
        if offset is None:
            continue
        resume_at = since.get(at, end) if isinstance(max_lag, timedelta) else end - max_lag
        if offset < resume_at:
            found.append(Gap(Range(at, offset, resume_at), f"skipped: more than max_lag={_format_lag(max_lag)} behind"))
    return found


def _format_lag(max_lag: int | timedelta) -> str:
    return counted(max_lag, "offset") if isinstance(max_lag, int) else str(max_lag)


def unread_of_deleted(progress: Progress, ends: Mapping[TopicPartition, int], topics: Collection[str]) -> list[Gap]:
    """The records between the offsets and the last known `ends` of topics that are no longer among `topics`."""
    return [
        Gap(Range(at, progress.offsets[at], end), _DELETED)
        for at, end in ends.items()
        if at.topic not in topics and progress.offsets.get(at, end) < end
    ]


def with_undelivered(found: Iterable[Gap], batch: Batch | None, progress: Progress) -> list[Gap]:
    """The gaps; those of a recreated topic include the range of the `batch` that was being read from the old topic."""
    ranges = {r.at: r for r in batch.ranges} if batch else {}

    def widen(gap: Gap) -> Gap:
        r = ranges.get(gap.lost.at)
        if gap.reason != RECREATED or r is None or progress.offsets.get(r.at) == r.until:
            return gap  # a task that commits by itself has moved the offset of its partition: its records are stored
        return replace(gap, lost=r)

    return [widen(gap) for gap in found]


def skipped_by_start(progress: Progress, after: Mapping[TopicPartition, int]) -> list[Gap]:
    """The records before the offsets at which a source with `resume=False` starts again."""
    return [
        Gap(Range(at, before, after[at]), "skipped: resume=False")
        for at, before in progress.offsets.items()
        if before < after.get(at, 0)
    ]


def still_readable(batch: Batch, logs: Mapping[str, TopicLog]) -> tuple[tuple[Range, ...], list[Gap]]:
    """The parts of a pending batch's ranges that the logs still have, and those that are lost."""
    kept: list[Range] = []
    lost: list[Gap] = []
    for r in batch.ranges:
        log = logs.get(r.at.topic)
        found = [Gap(r, _DELETED)] if log is None else _gaps_within(r, log, batch.topic_ids.get(r.at.topic))
        lost += found
        kept += _remaining(r, found)
    return tuple(kept), lost


def part_of(batch: Batch, ranges: tuple[Range, ...]) -> Batch:
    """The batch with only `ranges` and the ids of their topics, because other topics may have been recreated."""
    topics = {r.at.topic for r in ranges}
    ids = {topic: own for topic, own in batch.topic_ids.items() if topic in topics}
    return replace(batch, ranges=ranges, missing=0, topic_ids=ids)


def find_gaps(progress: Progress, logs: Mapping[str, TopicLog]) -> list[Gap]:
    """The gaps between the stored offsets and the logs of the cluster."""
    found: list[Gap] = []
    for topic, log in logs.items():
        known_id = progress.topic_ids.get(topic)
        if known_id is not None and known_id != log.topic_id:
            # Also partitions that the new topic does not have yet: their offsets belong to the old one.
            old = ((at, offset) for at, offset in progress.offsets.items() if at.topic == topic)
            found += [Gap(Range(at, offset, offset), RECREATED) for at, offset in old]
            continue
        for at, beginning in log.beginnings.items():
            offset = progress.offsets.get(at)
            if offset is None:
                continue
            end = log.written.get(at, log.ends[at])
            if offset < beginning:
                found.append(Gap(Range(at, offset, beginning), "the broker has deleted these records"))
            elif offset > end:
                found.append(Gap(Range(at, end, offset), f"the log was cut back to {end}", cut_back=True))
    return found


def _gaps_within(wanted: Range, log: TopicLog, topic_id: str | None) -> list[Gap]:
    """The gaps in `log` within a range that was planned on the topic with this id."""
    at = wanted.at
    if topic_id is not None and topic_id != log.topic_id:
        return [Gap(wanted, RECREATED)]
    if at not in log.ends:
        return [Gap(wanted, "the partition is gone")]
    beginning, end = log.beginnings[at], log.written.get(at, log.ends[at])
    found: list[Gap] = []
    if wanted.start < beginning:
        found.append(Gap(Range(at, wanted.start, min(beginning, wanted.until)), "the broker has deleted these records"))
    if wanted.until > end:
        found.append(Gap(Range(at, max(end, wanted.start), wanted.until), f"the log was cut back to {end}"))
    return found


def _remaining(wanted: Range, lost: Collection[Gap]) -> list[Range]:
    """The range without its lost parts at either end; empty if nothing is left."""
    start = max((gap.lost.until for gap in lost if gap.lost.start == wanted.start), default=wanted.start)
    until = min((gap.lost.start for gap in lost if gap.lost.until == wanted.until), default=wanted.until)
    return [Range(wanted.at, start, until)] if start < until else []


def resume_offset(gap: Gap, log: TopicLog, policy: str) -> int:
    """The offset at which to continue after a gap: that of the earliest or the latest available record."""
    at = gap.lost.at
    if at not in log.ends:
        return 0  # its first offset, if the partition is added later
    return log.ends[at] if policy == "latest" or gap.cut_back else log.beginnings[at]
