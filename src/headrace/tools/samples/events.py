"""Sample health reports of clients, as `examples/events_alerts` reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from headrace.tools.samples.sample import Sample, as_json, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def events(seed: int, times: Iterable[datetime]) -> Iterator[Sample]:
    """`{"id", "ts", "source", "client", "health"}`, keyed by source. The id is the current millisecond, or the next
    free one: with more than a thousand records per second the ids run ahead of the clock, but the times do not."""
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
