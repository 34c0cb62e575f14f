"""Plans the next batch from positions, end offsets and limits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import ConfigError
from headrace.support.validation import check_positive, check_whole_number
from headrace.types import Batch, Range, TopicPartition

if TYPE_CHECKING:
    from headrace.types import Progress

LONGEST_DELAY = 60.0
"""Default of `max_delay`: seconds that `min_records` may hold a batch back."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum and minimum size of a batch.

    `max_records`, over all partitions, and `per_partition` are never exceeded. `max_bytes`, of keys and values, is
    approximate: the size of earlier records predicts that of later ones. `batch_seconds` is the time that a batch
    should take: a controller makes batches smaller while a sink is slow. Both begin with a batch of `first_records`.

    With `min_records` a batch waits until so many records are available, but not longer than `max_delay` seconds.
    """

    max_records: int = 1_000_000
    per_partition: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay: float | None = None
    batch_seconds: float | None = None
    first_records: int = 10_000

    def __post_init__(self) -> None:
        for name in ("max_records", "per_partition", "max_bytes", "min_records", "first_records"):
            if (value := getattr(self, name)) is not None:
                unit = "bytes" if name == "max_bytes" else "records"
                check_whole_number(name, value, unit=unit, hint=f"Limits({name}=100_000)")
        for name in ("max_delay", "batch_seconds"):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value, unit="seconds", hint=f"Limits({name}=5)")
        if self.max_delay is not None and self.min_records is None:
            raise ConfigError(
                "Limits(max_delay=…): expected min_records too, got none",
                hint="min_records=10_000",
            )
        if self.min_records is not None and self.min_records > self.max_records:
            raise ConfigError(
                f"Limits(min_records={self.min_records:,}, max_records={self.max_records:,}): no batch can be both"
            )

    def due(self, waiting: int, waited: float) -> bool:
        """Whether to start a batch of `waiting` records, the first of which was seen `waited` seconds ago."""
        return self.min_records is None or waiting >= self.min_records or waited >= self.longest_delay

    @property
    def longest_delay(self) -> float:
        """Maximum seconds that a record waits for others to fill a batch."""
        if self.min_records is None:
            return 0.0
        return LONGEST_DELAY if self.max_delay is None else self.max_delay


@dataclass(frozen=True, slots=True)
class TopicLog:
    """The state of one topic in the cluster: its topic id, and the first and next offset of each partition.

    `written` is the next offset of all records, committed or not, if it was requested. `left_out` are partitions of the
    topic that the source does not read.
    """

    topic_id: str
    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    left_out: tuple[TopicPartition, ...] = ()
    written: Mapping[TopicPartition, int] = field(default_factory=dict)


Start: TypeAlias = str | datetime | Mapping[TopicPartition, int]
"""Where a source starts: "earliest", "latest", "stored", a time, or offsets."""


def first_positions(
    progress: Progress,
    logs: Mapping[str, TopicLog],
    start: Start,
    at_time: Mapping[TopicPartition, int],
    watched: Collection[str] | None = None,
) -> tuple[Range, ...]:
    """Empty ranges at the start positions of new partitions.

    `start` applies to topics that are new to the pipeline. A partition that is added to a topic in `watched` (by
    default, one with offsets) has only records younger than the pipeline, so it is read from its beginning, unless
    `start` has its offset. If `start` is a time, `at_time` has the offsets of partitions with a record since then.
    """
    known = {at.topic for at in progress.offsets} if watched is None else watched
    given = start if isinstance(start, Mapping) else {}
    first: list[Range] = []
    for topic, log in logs.items():
        new = {at for at in log.ends if at not in progress.offsets}
        if not new:
            continue
        if topic in known:
            positions: Mapping[TopicPartition, int] = {**log.beginnings, **_within(log, given, new)}
        elif start == "stored":
            raise ConfigError(
                f'no offsets of {topic} are stored, and start="stored" begins nowhere else',
                hint='headrace offsets import, or headrace offsets reset; or start="earliest"',
            )
        else:
            positions = resolve_start(log, start, at_time, new)
        first += [Range(at, positions[at], positions[at]) for at in new]
    return tuple(sorted(first))


def resolve_start(
    log: TopicLog, start: Start, at_time: Mapping[TopicPartition, int], among: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """The offset that `start` means for each partition of a topic. ConfigError for an offset outside of the log of a
    partition in `among`: those that start there, by default all."""
    if isinstance(start, datetime):
        return {at: at_time.get(at, end) for at, end in log.ends.items()}
    if isinstance(start, Mapping):
        return {**log.beginnings, **_within(log, start, log.ends if among is None else among)}
    return dict(log.ends if start == "latest" else log.beginnings)


def _within(
    log: TopicLog, given: Mapping[TopicPartition, int], among: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The `given` offsets of these partitions of the topic."""
    own = {at: given[at] for at in log.ends if at in given and at in among}
    for at, offset in own.items():
        if not log.beginnings[at] <= offset <= log.ends[at]:
            raise ConfigError(
                f"start: {at} from {offset}; its log has offsets {log.beginnings[at]} to {log.ends[at]}",
                hint='correct start={…}, or start="earliest"',
            )
    return own


def plan(
    progress: Progress,
    ends: Mapping[TopicPartition, int],
    limits: Limits,
    topic_ids: Mapping[str, str],
    budget: int | None = None,
) -> Batch | None:
    """The next batch, or None if there is nothing to read. `budget` is a number of records below the limit.

    The budget is shared evenly: every partition gets the same share, or all of its records if it has fewer, so a long
    partition never starves a short one. A budget below the number of partitions rotates by batch id.
    """
    waiting = {at: ends[at] - offset for at, offset in progress.offsets.items() if ends.get(at, 0) > offset}
    if not waiting:
        return None
    batch_id = progress.last_batch + 1
    if limits.per_partition is not None:
        waiting = {at: min(lag, limits.per_partition) for at, lag in waiting.items()}
    counts = _fair_share(waiting, min(limits.max_records, budget or limits.max_records), batch_id)
    ranges = tuple(
        Range(at, progress.offsets[at], progress.offsets[at] + count) for at, count in counts.items() if count
    )
    topics = {r.at.topic for r in ranges}
    ids = {t: topic_ids[t] for t in sorted(topics) if t in topic_ids}
    return Batch(batch_id, ranges, ids, epoch=progress.epoch)


def _fair_share(waiting: Mapping[TopicPartition, int], budget: int, turn: int) -> dict[TopicPartition, int]:
    if sum(waiting.values()) <= budget:
        return dict(waiting)
    names = sorted(waiting)
    cut = turn % len(names)
    # Shortest first, so that the unused share of a short partition goes to the longer ones; the turn breaks ties.
    order = sorted(names[cut:] + names[:cut], key=lambda at: waiting[at])
    if budget < len(order):
        order = (names[cut:] + names[:cut])[:budget]
    shares: dict[TopicPartition, int] = {}
    for left, at in zip(range(len(order), 0, -1), order, strict=True):
        shares[at] = min(waiting[at], budget // left)
        budget -= shares[at]
    return shares


def reachable(targets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The `targets` limited to the logs: a topic may have been deleted, or recreated with fewer records."""
    return {at: min(target, ends[at]) for at, target in targets.items() if at in ends}


def caught_up(progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
    """Whether every partition has been read up to its target."""
    return all(progress.offsets.get(at, 0) >= target for at, target in targets.items())


def lag(progress: Progress, ends: Mapping[TopicPartition, int]) -> int:
    """The number of records in the log that are not processed yet."""
    return sum(partition_lags(progress, ends).values())


def partition_lags(progress: Progress, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The lag of each partition that has any."""
    return {at: end - offset for at, end in ends.items() if (offset := progress.offsets.get(at, 0)) < end}
