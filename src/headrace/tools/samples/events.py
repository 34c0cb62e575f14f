"""What sources report of the health of their clients, as `examples/events_alerts` takes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from headrace.tools.samples.sample import Sample, as_json, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def events(seed: int, times: Iterable[datetime]) -> Iterator[Sample]:
    """`{"id", "ts", "source", "client", "health"}`, keyed by source. The id is the millisecond, or the next free one:
    more than a thousand a second have ids that run ahead of the clock, and times that do not."""
    chance = Random(seed)  # noqa: S311 - made-up data
    last = -1
    for at in times:
        last = max(last + 1, (at - _EPOCH) // _MILLISECOND)
        source = f"source-{chance.randrange(10)}"
        fields = {
            "id": last,
            "ts": stamp(at),
            "source": source,
            "client": f"client-{chance.randrange(100)}",
            "health": chance.randrange(101),
        }
        yield Sample(source.encode(), as_json(fields), (), at)
