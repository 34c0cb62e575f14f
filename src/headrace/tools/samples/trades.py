"""Sample ask prices of ten shares, each a random walk."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from headrace.tools.samples.sample import Sample, as_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

TICKERS = ("AMZN", "CSCO", "DELL", "GOOG", "IBM", "INTC", "MSFT", "NFLX", "ORCL", "SAP")


def trades(seed: int, times: Iterable[datetime]) -> Iterator[Sample]:
    """`{"ticker", "ask_price", "ask_size"}`, keyed by ticker. The time is the record's timestamp, not in the value."""
    chance = Random(seed)  # noqa: S311 - made-up data
    cents = {ticker: chance.randrange(2_000, 40_000) for ticker in TICKERS}
    for at in times:
        ticker = chance.choice(TICKERS)
        cents[ticker] = max(100, cents[ticker] + chance.randint(-50, 50))
        fields = {"ticker": ticker, "ask_price": cents[ticker] / 100, "ask_size": 100 * chance.randint(1, 50)}
        yield Sample(ticker.encode(), as_json(fields), (), at)
