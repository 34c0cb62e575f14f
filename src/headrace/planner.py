"""Positions, ends and limits in; the next batch out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.types import Batch, Range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.types import Progress, TopicPartition


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch may read. `max_records` over all partitions, `per_partition` in each of them."""

    max_records: int = 1_000_000
    per_partition: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_records", "per_partition"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(
                    f"Limits({name}={value!r}): the limit is a whole number of records, at least 1",
                    hint=f"Limits({name}=100_000)",
                )


@dataclass(frozen=True, slots=True)
class Gap:
    """Records `[start, until)` that were not read yet and can no longer be: a range of loss and its reason."""

    lost: Range
    reason: str

    def __str__(self) -> str:
        return f"{self.lost}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Log:
    """What the cluster holds of one topic: Kafka's id of it, and per partition the first and the next offset."""

    topic_id: str
    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def first_positions(progress: Progress, logs: Mapping[str, Log], start: str) -> tuple[Range, ...]:
    """Empty ranges that fix where partitions never seen before are first read.

    `start` speaks of topics new to the pipeline. A partition that appears in a topic already known holds
    only records younger than the pipeline, so all of them are wanted.
    """
    known = {at.topic for at in progress.offsets}
    first: list[Range] = []
    for topic, log in logs.items():
        positions = log.ends if start == "latest" and topic not in known else log.beginnings
        first += [Range(at, offset, offset) for at, offset in positions.items() if at not in progress.offsets]
    return tuple(sorted(first))


def gaps(progress: Progress, logs: Mapping[str, Log]) -> list[Gap]:
    """Where the stored offsets and the cluster's log no longer meet."""
    found: list[Gap] = []
    for topic, log in logs.items():
        known_id = progress.topic_ids.get(topic)
        recreated = known_id is not None and known_id != log.topic_id
        for at, beginning in log.beginnings.items():
            offset = progress.offsets.get(at)
            if offset is None:
                continue
            end = log.ends[at]
            if recreated:
                found.append(Gap(Range(at, offset, offset), "the topic was deleted and created again"))
            elif offset < beginning:
                found.append(Gap(Range(at, offset, beginning), "the broker has deleted these records"))
            elif offset > end:
                found.append(Gap(Range(at, end, offset), f"the log was cut back to {end}"))
    return found


def beyond(gap: Gap, log: Log, policy: str) -> int:
    """Where to go on after a gap: at the earliest or the latest record that is there."""
    at = gap.lost.at
    # A log that was cut back goes on at its end: what lies before it has been read.
    cut_back = gap.lost.start == log.ends[at] and len(gap.lost) > 0
    return log.ends[at] if policy == "latest" or cut_back else log.beginnings[at]


def plan(
    progress: Progress,
    ends: Mapping[TopicPartition, int],
    limits: Limits,
    topic_ids: Mapping[str, str],
) -> Batch | None:
    """The next batch, or None when there is nothing to read.

    The budget is filled evenly: every partition gets the same share or all it has, so a long partition never
    starves a short one. A budget smaller than the number of partitions goes round by batch id.
    """
    waiting = {at: ends[at] - offset for at, offset in progress.offsets.items() if ends.get(at, 0) > offset}
    if not waiting:
        return None
    batch_id = progress.last_batch + 1
    if limits.per_partition is not None:
        waiting = {at: min(lag, limits.per_partition) for at, lag in waiting.items()}
    counts = _share(waiting, limits.max_records, batch_id)
    ranges = tuple(
        Range(at, progress.offsets[at], progress.offsets[at] + count) for at, count in counts.items() if count
    )
    topics = {r.at.topic for r in ranges}
    return Batch(batch_id, ranges, {t: topic_ids[t] for t in sorted(topics) if t in topic_ids})


def _share(waiting: Mapping[TopicPartition, int], budget: int, turn: int) -> dict[TopicPartition, int]:
    if sum(waiting.values()) <= budget:
        return dict(waiting)
    names = sorted(waiting)
    cut = turn % len(names)
    # Shortest first, so that what a short partition leaves over goes to the longer ones; the turn breaks ties.
    order = sorted(names[cut:] + names[:cut], key=lambda at: waiting[at])
    if budget < len(order):
        order = (names[cut:] + names[:cut])[:budget]
    shares: dict[TopicPartition, int] = {}
    for left, at in zip(range(len(order), 0, -1), order, strict=True):
        shares[at] = min(waiting[at], budget // left)
        budget -= shares[at]
    return shares


def caught_up(progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
    """Whether every partition has been read up to its target."""
    return all(progress.offsets.get(at, 0) >= target for at, target in targets.items())


def lag(progress: Progress, ends: Mapping[TopicPartition, int]) -> int:
    """Records that are in the log and not yet processed."""
    return sum(max(0, end - progress.offsets.get(at, 0)) for at, end in ends.items())
