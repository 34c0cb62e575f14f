"""Sample clicks on the articles of a site."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from headrace.tools.samples.sample import Sample, as_json, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

USERS, ARTICLES = 500, 97
_REFERRERS = (None, None, None, "https://search.example/", "https://news.example/", "https://mail.example/")


def clicks(seed: int, times: Iterable[datetime]) -> Iterator[Sample]:
    """`{"user", "page", "at", "referrer"}`, keyed by user. A few users and pages have most of the clicks."""
    chance = Random(seed)  # noqa: S311 - made-up data
    for at in times:
        user = f"user-{int(USERS * chance.random() ** 2)}"
        page = f"/articles/{int(ARTICLES * chance.random() ** 2)}"
        fields = {"user": user, "page": page, "at": stamp(at), "referrer": chance.choice(_REFERRERS)}
        yield Sample(user.encode(), as_json(fields), (), at)
