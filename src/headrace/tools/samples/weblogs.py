"""Sample lines of a web server's log."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from headrace.tools.samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

_PATHS = ("/", "/index.html", "/articles/{n}", "/articles/{n}", "/images/{n}.png", "/search?q={n}", "/login", "/admin")
_METHODS = ("GET", "GET", "GET", "GET", "HEAD", "POST")
_STATUS = (200, 200, 200, 200, 200, 304, 301, 404, 403, 500)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def weblogs(seed: int, times: Iterable[datetime], malformed: float = 0.0) -> Iterator[Sample]:
    """Lines in the common log format, keyed by the client's address; `malformed` is the share that is truncated."""
    chance = Random(seed)  # noqa: S311 - made-up data
    for at in times:
        host = f"10.0.{chance.randrange(4)}.{chance.randrange(1, 255)}"
        user = chance.choice(("-", "-", "-", "ann", "bob"))
        path = chance.choice(_PATHS).format(n=chance.randrange(97))
        status = chance.choice(_STATUS)
        size = "-" if status == 304 else str(chance.randrange(200, 50_000))
        # Not strftime, whose month names depend on the locale.
        when = f"{at.day:02}/{_MONTHS[at.month - 1]}/{at:%Y:%H:%M:%S %z}"
        line = f'{host} - {user} [{when}] "{chance.choice(_METHODS)} {path} HTTP/1.1" {status} {size}'
        cut = chance.randrange(len(line) // 3, len(line) - len(size) - 1)
        broken = chance.random() < malformed
        yield Sample(host.encode(), (line[:cut] if broken else line).encode(), (), at)
