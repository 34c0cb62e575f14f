"""Converts source offsets to cell timestamps. Each topic whose rows a table has is a generation.

A store that keeps the value with the highest timestamp needs a number that grows with every version. Offsets do, until
a topic is recreated and starts again at 0. So a table has an ordered list of the ids of its topics: the position of a
topic is its generation, which is the high-order part of the timestamp; the offset is the low-order part.
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
"""Timestamps per generation: the maximum number of records of a partition."""
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
    """The generation of the topic of `batch`. Records a new topic.

    `read` returns the stored topics of a table; `swap` replaces them if they have not changed since.
    Generations count from `first`. ConfigError for several topics, at once or in turn: a new record of the earlier
    topic would have a lower timestamp than an old one of the later topic. OffsetConflict for a topic that was recreated
    since: its values are older than the stored ones. (A deleted topic whose id is not recorded yet would get the newest
    generation, but it has no records left to read.)
    """
    ids = {r.at.topic: "" for r in batch.ranges} | dict(batch.topic_ids)
    if len(ids) != 1:
        raise several_topics_error(sink, list(ids))
    ((topic, topic_id),) = ids.items()
    while True:
        stored = read()
        known: list[list[str]] = json.loads(stored) if stored else []
        if known and known[-1] == [topic, topic_id]:
            return first + len(known) - 1
        if [topic, topic_id] in known:
            if any(name == topic for name, _ in known[known.index([topic, topic_id]) + 1 :]):
                raise OffsetConflict(
                    f"{sink}: the topic {topic} was recreated, and another run has written rows of the new one",
                    hint="stop the run that still reads the old one",
                )
            raise ConfigError(
                f"{sink}: the table has rows of the topic {known[-1][0]}, which came after {topic}: new values of"
                f" {topic} would lose to older ones of {known[-1][0]}",
                hint="a table for each topic; or fill a new table from the start",
            )
        if swap(stored, json.dumps([*known, [topic, topic_id]])):
            return first + len(known)


def several_topics_error(sink: str, topics: Sequence[str] | None) -> ConfigError:
    description = "topics not known ahead" if topics is None else f"{len(topics)} topics ({', '.join(sorted(topics))})"
    return ConfigError(
        f"{sink}: the rows come from {description}, and offsets of two topics do not tell"
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
