"""Prints a topic in sections, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace.cli.output.terminal import say, table
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.tools.topics import Partition, Topic

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def show(topic: Topic, offsets: Mapping[TopicPartition, int] | None, owner: str | None, *, all_settings: bool) -> None:
    problems = [f"{p.number} ({p.problem})" for p in topic.partitions if p.problem]
    say(f"{topic.name}{' (internal)' if topic.internal else ''}")
    say(f"  id           {topic.id}")
    say(f"  partitions   {len(topic.partitions)}, replication {topic.replication}")
    say(f"  offsets      {number_or(topic.offsets, 'unknown')}")
    say(f"  retention    {retention(topic)}")
    if problems:
        say(f"  PROBLEM      partition {', '.join(problems)}")
    if offsets is not None:
        say(f"  lag          {sum(_lag(topic, p, offsets) or 0 for p in topic.partitions):,} of {owner}")
    say("", "configuration")
    _show_settings(topic, all_settings=all_settings)
    say("", "partitions")
    _show_partitions(topic, offsets)


def _show_settings(topic: Topic, *, all_settings: bool) -> None:
    if topic.settings is None:
        say("not shown to this user")
        return
    shown = [s for _, s in sorted(topic.settings.items()) if all_settings or s.source != "default"]
    rows = [[s.name, "(hidden)" if s.hidden else s.value if s.value is not None else "", s.source] for s in shown]
    if rows:
        table(["setting", "value", "set by"], rows)
    if not all_settings:
        say(f"{'the others are' if rows else 'all are'} Kafka's defaults; --all-settings shows them")


def _show_partitions(topic: Topic, offsets: Mapping[TopicPartition, int] | None) -> None:
    columns = ["partition", "leader", "replicas", "in sync", "first", "next"]
    columns += ["committed", "lag"] if offsets is not None else []
    rows = []
    for p in topic.partitions:
        row = [
            str(p.number),
            number_or(p.leader),
            ",".join(map(str, p.replicas)),
            ",".join(map(str, p.in_sync)),
            number_or(p.first),
            number_or(p.next),
        ]
        if offsets is not None:
            offset = offsets.get(TopicPartition(topic.name, p.number))
            row += [
                number_or(offset, "none"),
                "PAST THE END" if _is_past_end(p, offset) else number_or(_lag(topic, p, offsets)),
            ]
        rows.append([*row, (p.problem or "").upper()])
    table([*columns, ""], rows)


def complete(topic: Topic, offsets: Mapping[TopicPartition, int] | None = None) -> dict[str, Any]:
    partitions = []
    for p in topic.partitions:
        entry = {**asdict(p), "offsets": p.offsets, "trouble": p.problem}
        if offsets is not None:
            entry["offset"] = offset = offsets.get(TopicPartition(topic.name, p.number))
            entry["lag"] = _lag(topic, p, offsets)
            entry["past_end"] = _is_past_end(p, offset)
        partitions.append(entry)
    settings = None if topic.settings is None else {n: asdict(s) for n, s in sorted(topic.settings.items())}
    return {
        "topic": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "replication": topic.replication,
        "offsets": topic.offsets,
        "settings": settings,
        "partitions": partitions,
    }


def retention(topic: Topic) -> str:
    """The retention as text: `7 d`, `7 d or 1 GiB`, `the last of each key`."""
    if topic.settings is None:
        return "?"
    policy = (topic.setting("cleanup.policy") or "delete").split(",")
    parts = ["the last of each key"] if "compact" in policy else []
    if "delete" in policy:
        parts.append(_limits(int(topic.setting("retention.ms") or -1), int(topic.setting("retention.bytes") or -1)))
    return ", ".join(parts)


def _limits(milliseconds: int, size: int) -> str:
    found = [_in_units(milliseconds, _UNITS, "ms")] if milliseconds >= 0 else []
    found += [f"{_in_units(size, _SIZES, 'B')} a partition"] if size >= 0 else []
    return " or ".join(found) or "forever"


def _in_units(amount: int, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    unit, name = next(((unit, name) for unit, name in units if amount >= unit), (1, smallest))
    return f"{amount / unit:.3g} {name}"


def _lag(topic: Topic, partition: Partition, offsets: Mapping[TopicPartition, int]) -> int | None:
    """The lag; a partition without a committed offset lags by all of its records."""
    if partition.next is None or partition.first is None:
        return None
    return max(0, partition.next - offsets.get(TopicPartition(topic.name, partition.number), partition.first))


def _is_past_end(partition: Partition, offset: int | None) -> bool:
    """Whether the offset is beyond the end of the log, where nothing can be read: the topic was recreated, or a replica
    was lost."""
    return offset is not None and partition.next is not None and offset > partition.next


def number_or(number: int | None, otherwise: str = "?") -> str:
    return otherwise if number is None else f"{number:,}"
