"""State as one number per partition plus one JSON text about all of them. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.core import format_version
from headrace.core.state import RunLease, State, moves_back
from headrace.types import Batch, Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


FORMAT = 1
"""Format of the JSON text; see `format_version`."""


class VersionedOffset(NamedTuple):
    """An offset and the version of its node, which counts the writes."""

    offset: int
    version: int


@dataclass(frozen=True, slots=True)
class ZNodeSnapshot:
    """One read: the state, the number and version of each offset node, and the version of the JSON node."""

    state: State = field(default_factory=State)
    numbers: Mapping[TopicPartition, VersionedOffset] = field(default_factory=dict)
    version: int = 0
    written: int = 0


def encode(state: State, numbers: Mapping[TopicPartition, VersionedOffset]) -> bytes:
    progress = state.progress
    by_topic: dict[str, dict[int, VersionedOffset]] = {}
    for at, number in numbers.items():
        by_topic.setdefault(at.topic, {})[at.partition] = number
    raw = {
        format_version.KEY: FORMAT,
        "last_batch": progress.last_batch,
        "epoch": progress.epoch,
        "topic_ids": dict(progress.topic_ids),
        "pending": json.loads(progress.pending.to_json()) if progress.pending is not None else None,
        "run": asdict(state.run) if state.run else None,
        "offsets": by_topic,
    }
    return json.dumps(raw, separators=(",", ":")).encode()


def read_numbers(text: bytes) -> dict[TopicPartition, VersionedOffset]:
    """The numbers as the last swap set them."""
    return {
        TopicPartition(topic, int(partition)): VersionedOffset(*number)
        for topic, numbers in (json.loads(text)["offsets"] if text else {}).items()
        for partition, number in numbers.items()
    }


def decode(text: bytes, numbers: Mapping[TopicPartition, VersionedOffset]) -> State:
    """Decode the state with these numbers. Other tools may have set some of them: a pending batch that they contradict
    is abandoned, and a number that was moved back or deleted begins a new epoch."""
    offsets = {at: number.offset for at, number in numbers.items()}
    if not text:
        return State(Progress(offsets))
    raw = json.loads(text)
    format_version.read_version(raw, FORMAT, "the state of this pipeline in ZooKeeper")
    pending = Batch.from_json(json.dumps(raw["pending"])) if raw["pending"] else None
    progress = Progress(offsets, pending, raw["topic_ids"], raw["last_batch"], raw.get("epoch", 0))
    last_swap = {at: number.offset for at, number in read_numbers(text).items()}
    if pending is not None and progress.behind(pending):
        progress = replace(progress, pending=None, last_batch=max(progress.last_batch, pending.id))
    else:
        pending = None
    if moves_back(Progress(last_swap, pending), offsets):
        progress = replace(progress, epoch=progress.epoch + 1)
    return State(progress, read_lease(text))


def read_lease(text: bytes) -> RunLease | None:
    """The run that wrote its lease last."""
    run = json.loads(text)["run"] if text else None
    return RunLease(**run) if run else None


def find_outdated(
    last_swap: Mapping[TopicPartition, VersionedOffset], found: Mapping[TopicPartition, VersionedOffset]
) -> set[TopicPartition]:
    """Partitions to read again: when `found`, they were older than the text, which was read after them."""
    return {at for at, number in last_swap.items() if at not in found or found[at].version < number.version}


def merge_numbers(
    last_swap: Mapping[TopicPartition, VersionedOffset],
    found: Mapping[TopicPartition, VersionedOffset],
    again: Mapping[TopicPartition, VersionedOffset | None],
) -> dict[TopicPartition, VersionedOffset]:
    """Consistent numbers: those of the last swap, except those that other tools have set since.

    The numbers were `found` before the text with the numbers of the last swap was read, so a swap did not set a number
    that is ahead of the text. A number that was behind it and still is when read `again` was deleted and recreated
    manually.
    """
    ahead = {
        at: number for at, number in found.items() if at not in last_swap or number.version > last_swap[at].version
    }
    numbers = {**last_swap, **ahead}
    for at, late in again.items():
        if late is None:
            del numbers[at]
        elif late.version < last_swap[at].version:
            numbers[at] = late
    return numbers
