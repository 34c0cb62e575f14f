"""Source offsets as timestamps, for stores whose cells have one: each topic that wrote to a table is a generation.

A store that keeps the value with the highest timestamp needs one number that grows from version to version. Offsets do,
until a topic is recreated and starts again at 0. So a table remembers the ids of the topics that it has rows of, in
order: the position of a topic is its generation, which counts before the offset.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.core.sink import METADATA
from headrace.errors import ConfigError, OffsetConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.types import Batch

OFFSETS_PER_GENERATION = 2**40
"""Timestamps of one generation: a partition may have as many records."""
NO_OFFSET = f"it has no {METADATA}, so no offset tells it from an older value"
"""The reason why a row without an offset is rejected if other values have one."""


def timestamp(generation: int, offset: int) -> int:
    """The timestamp of the record at `offset`, in a topic of this generation."""
    if offset >= OFFSETS_PER_GENERATION:
        raise ConfigError(f"offset {offset} is too large to order values by", hint="write it without a key of its own")
    return generation * OFFSETS_PER_GENERATION + offset


def topic_generation(
    batch: Batch, sink: str, read: Callable[[], str | None], swap: Callable[[str | None, str], bool], first: int
) -> int:
    """The generation of the topic of `batch`; a new topic is recorded.

    `read` returns the stored topics of a table; `swap` replaces them if they are still those that were read.
    Generations count from `first`. ConfigError for several topics, at once or in turn: a new record of the earlier
    topic would have a lower timestamp than an old one of the later topic. OffsetConflict for a topic that was recreated
    since: its values are older than the stored ones. (A run that comes with the id of a deleted topic for the first
    time would count as the newer one, but it has nothing left to read.)
    """
    ids = {r.at.topic: "" for r in batch.ranges} | dict(batch.topic_ids)
    if len(ids) != 1:
        raise several_topics(sink, list(ids))
    ((topic, number),) = ids.items()
    while True:
        text = read()
        known: list[list[str]] = json.loads(text) if text else []
        if known and known[-1] == [topic, number]:
            return first + len(known) - 1
        if [topic, number] in known:
            if any(name == topic for name, _ in known[known.index([topic, number]) + 1 :]):
                raise OffsetConflict(
                    f"{sink}: the topic {topic} was recreated, and another run has written rows of the new one",
                    hint="stop the run that still reads the old one",
                )
            raise ConfigError(
                f"{sink}: the table has rows of the topic {known[-1][0]}, which came after {topic}: new values of"
                f" {topic} would lose to older ones of {known[-1][0]}",
                hint="a table for each topic; or fill a new table from the start",
            )
        if swap(text, json.dumps([*known, [topic, number]])):
            return first + len(known)


def several_topics(sink: str, topics: Sequence[str] | None) -> ConfigError:
    which = "topics not known ahead" if topics is None else f"{len(topics)} topics ({', '.join(sorted(topics))})"
    return ConfigError(
        f"{sink}: the rows come from {which}, and offsets of two topics do not tell"
        " which of two values with one key is newer",
        hint="a pipeline and a table for each topic",
    )


def refuse_unversioned(sink: str, known: str | None) -> None:
    """ConfigError for rows without an offset if the values of the table have one: their order would be undefined."""
    if known is not None:
        raise ConfigError(
            f"{sink}: its values have source offsets as timestamps, and the transform dropped {METADATA}, so that these"
            " rows have none to compare",
            hint=f"keep {METADATA} in the transform, or write to another table",
        )
