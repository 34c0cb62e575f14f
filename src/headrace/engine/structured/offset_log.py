"""The offset log of a Structured Streaming query: JSON texts per source, as ranges of Kafka partitions. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.types import Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence


def kafka_ranges(before: Sequence[str | None] | None, after: Sequence[str | None]) -> tuple[Range, ...]:
    """The ranges that a batch reads, from the end offsets of all sources `before` it and `after` it.

    A partition without an offset before gets an empty range. Partitions that several sources read, at offsets of their
    own, and sources other than Kafka are left out.
    """
    starts = [kafka_offsets(text) for text in before or ()]
    starts += [{}] * (len(after) - len(starts))
    ends = [kafka_offsets(text) for text in after]
    readers = Counter(at for offsets in ends for at in offsets)
    return tuple(
        Range(at, start.get(at, until), until)
        for start, end in zip(starts, ends, strict=True)
        for at, until in end.items()
        if readers[at] == 1
    )


def content_hash(after: Sequence[str | None]) -> str:
    """A hash of the end offsets of all sources, of any kind: with its number it tells what a batch reads."""
    canonical = json.dumps([_parsed(text) for text in after], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:20]


def kafka_offsets(text: str | None) -> dict[TopicPartition, int]:
    """The offsets in the JSON of a Kafka source, `{"clicks": {"0": 10}}`; none for another source."""
    raw = _parsed(text)
    if not isinstance(raw, dict):
        return {}
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in raw.items():
        if not isinstance(partitions, dict):
            return {}
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not isinstance(offset, int) or offset < 0:
                return {}
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:  # some sources write plain text
        return text
