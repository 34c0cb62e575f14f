"""Targets of an offset reset, and the change that a target means for each partition. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.support.durations import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.core.planner import TopicLog
    from headrace.types import Progress, TopicPartition


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The value of `--to`: exactly one of the fields is set."""

    edge: str | None = None
    time: datetime | None = None
    offset: int | None = None
    shift: int | None = None


def parse(text: str, now: datetime) -> ResetTarget:
    """Parse `earliest`, `latest`, `2026-11-01T12:00:00Z`, `1h` or `PT1H` (that long ago), `1000` or `shift:-1000`."""
    text = text.strip()
    if text in {"earliest", "latest"}:
        return ResetTarget(edge=text)
    if re.fullmatch(r"shift:[+-]?\d+", text):
        return ResetTarget(shift=int(text.removeprefix("shift:")))
    if text.isdigit():
        return ResetTarget(offset=int(text))
    try:
        if (ago := duration(text)) is not None:
            return ResetTarget(time=now - ago)
        time = datetime.fromisoformat(text)
    except (OverflowError, ValueError) as error:  # before the first time that Python has, or not a time
        raise ConfigError(
            f"expected a position, got {text!r}",
            hint="earliest, latest, 2026-11-01T12:00:00Z, 1h, an offset such as 1000, or shift:-1000",
        ) from error
    return ResetTarget(time=time if time.tzinfo else time.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The offset of one partition before and after a change. `before` is None if it has no offset yet."""

    at: TopicPartition
    before: int | None
    after: int
    beginning: int
    end: int

    @property
    def difference(self) -> int | None:
        return None if self.before is None else self.after - self.before

    @property
    def outside(self) -> bool:
        """Whether the log does not have the new offset: reading would fail there, or start elsewhere."""
        return not self.beginning <= self.after <= self.end


def moves(
    progress: Progress,
    logs: Mapping[str, TopicLog],
    target: ResetTarget,
    at_time: Mapping[TopicPartition, int],
    only: Iterable[TopicPartition] = (),
) -> list[OffsetChange]:
    """The changes that `target` means for all partitions, or for those in `only`. `at_time`: offsets at its time."""
    selected = set(only)
    changes: list[OffsetChange] = []
    for log in logs.values():
        for at, beginning in sorted(log.beginnings.items()):
            if selected and at not in selected:
                continue
            before, end = progress.offsets.get(at), log.ends[at]
            if target.shift is not None and before is None:
                raise ConfigError(f"{at} has no offset to shift", hint="--to earliest")
            after = _after(target, before or 0, beginning, end, at_time.get(at))
            changes.append(OffsetChange(at, before, after, beginning, end))
    if missing := sorted(selected - {change.at for change in changes}):
        raise ConfigError(f"no partition {missing[0]} on the cluster", hint="headrace offsets show")
    return changes


def to_offsets(
    progress: Progress, logs: Mapping[str, TopicLog], offsets: Mapping[TopicPartition, int]
) -> list[OffsetChange]:
    """The changes that set these offsets. A partition that the cluster does not have is marked as outside."""
    found = []
    for at, after in sorted(offsets.items()):
        log = logs.get(at.topic)
        known = log is not None and at in log.ends
        beginning, end = (log.beginnings[at], log.ends[at]) if log is not None and known else (0, -1)
        found.append(OffsetChange(at, progress.offsets.get(at), after, beginning, end))
    return found


def _after(target: ResetTarget, before: int, beginning: int, end: int, at_time: int | None) -> int:
    if target.offset is not None:
        return target.offset
    if target.shift is not None:
        return before + target.shift
    if target.time is not None:
        return end if at_time is None else at_time  # no record since that time: start at the next one
    return beginning if target.edge == "earliest" else end


def stale(
    progress: Progress, logs: Mapping[str, TopicLog], moved: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Offset 0 for the partitions that a recreated topic no longer has, in place of the offsets in the deleted topic.

    ConfigError if the recreated topic has such a partition and it is not `moved`: its old offset would count as one in
    the new topic.
    """
    found: dict[TopicPartition, int] = {}
    for topic, log in logs.items():
        if progress.topic_ids.get(topic, log.topic_id) == log.topic_id:
            continue
        unmoved = [at for at in progress.offsets if at.topic == topic and at not in moved]
        if existing := sorted(at for at in unmoved if at in log.ends):
            raise ConfigError(
                f"{topic} was deleted and created again: {existing[0]} has an offset of the topic before",
                hint="move all its partitions at once: leave out --partition",
            )
        found |= dict.fromkeys(unmoved, 0)
    return found
