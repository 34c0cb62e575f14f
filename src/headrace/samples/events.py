"""What sources report of the health of their clients, as `examples/events_alerts` takes it."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING

from headrace.samples.sample import Sample, as_json, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def events(seed: int, times: Iterable[datetime]) -> Iterator[Sample]:
    """`{"id", "ts", "source", "client", "health"}`, keyed by source. No two have the same millisecond: it is the id."""
    chance = Random(seed)  # noqa: S311 - made-up data
    last = -1
    for time in times:
        last = max(last + 1, round(time.timestamp() * 1000))
        at = datetime.fromtimestamp(last / 1000, UTC)
        source = f"source-{chance.randrange(10)}"
        fields = {
            "id": last,
            "ts": stamp(at),
            "source": source,
            "client": f"client-{chance.randrange(100)}",
            "health": chance.randrange(101),
        }
        yield Sample(source.encode(), as_json(fields), (), at)
