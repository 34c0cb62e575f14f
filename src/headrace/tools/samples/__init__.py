"""Generated sample records: endless, and the same for the same seed and times. Pure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.tools.samples.clicks import clicks
from headrace.tools.samples.events import events
from headrace.tools.samples.trades import trades
from headrace.tools.samples.weblogs import weblogs
from headrace.tools.samples.words import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta

    from headrace.tools.samples.sample import Sample

__all__ = ["SAMPLES", "as_they_come", "clicks", "events", "spaced", "trades", "weblogs", "words"]

SAMPLES: Mapping[str, Callable[[int, Iterable[datetime]], Iterator[Sample]]] = {
    "clicks": clicks,
    "events": events,
    "trades": trades,
    "weblogs": weblogs,
    "words": words,
}


def spaced(start: datetime, every: timedelta) -> Iterator[datetime]:
    """Times for a sample: `start`, and then one after each interval `every`."""
    number = 0
    while True:
        yield start + number * every
        number += 1


def as_they_come() -> Iterator[datetime]:
    """Times for a sample: for each record the moment at which it is requested."""
    while True:
        yield datetime.fromtimestamp(time.time(), UTC)
