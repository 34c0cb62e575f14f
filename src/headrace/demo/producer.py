"""The demo's producer, a separate process: sends clicks at a steady rate, and keeps a ledger of acknowledged ones."""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from array import array
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

PAGES = ("/", "/cart", "/checkout", "/help", "/login", "/product", "/search")


def click(number: int) -> dict[str, Any]:
    """The click with this number, without its time. Its content follows from the number, so that it can be verified."""
    return {"id": number, "user": f"user-{number * 7919 % 5000}", "page": PAGES[number * 31 % len(PAGES)]}


def produce(bootstrap: str, topic: str, events: int, rate: int, ledger: Path) -> None:
    """Produce `events` clicks; append the id of every acknowledged one to `ledger`.

    Each line of standard input is the total that may be produced so far. It ends when the parent process ends.
    """
    from confluent_kafka import Producer

    acknowledged = array("q")

    def acked(number: int, error: Any, _: Any) -> None:
        if error is None:
            acknowledged.append(number)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "headrace-demo",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,
        }
    )
    limits = _Limits(sys.stdin.fileno())
    sent, allowance, last = 0, 0.0, time.monotonic()
    with ledger.open("ab", buffering=0) as out:
        while sent < events and limits.open:
            now = time.monotonic()
            allowance, last = min(allowance + (now - last) * rate, rate), now  # do not catch up after a pause
            until = min(sent + int(allowance), limits.newest(), events)
            for number in range(sent, until):
                at = datetime.now(UTC).isoformat(timespec="milliseconds")
                value = json.dumps({**click(number), "at": at}).encode()
                producer.produce(
                    topic,
                    value,
                    key=f"user-{random.randrange(5000)}",  # noqa: S311 - spreads over partitions, guards nothing
                    on_delivery=partial(acked, number),
                )
            allowance, sent = allowance - (until - sent), until
            producer.poll(0.02)
            _write(out, acknowledged)
        producer.flush(60)
        _write(out, acknowledged)


class _Limits:
    """Reads numbers, one per line, from a descriptor without blocking."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = b""
        self._newest = 0
        self.open = True

    def newest(self) -> int:
        while self.open and select.select([self._descriptor], [], [], 0)[0]:
            chunk = os.read(self._descriptor, 4096)
            self.open = bool(chunk)
            *lines, self._text = (self._text + chunk).split(b"\n")
            self._newest = max([self._newest, *map(int, lines)])
        return self._newest


def _write(out: Any, acknowledged: array[int]) -> None:
    if acknowledged:
        out.write(acknowledged.tobytes())
        del acknowledged[:]


if __name__ == "__main__":
    _, bootstrap, topic, events, rate, ledger = sys.argv
    produce(bootstrap, topic, int(events), int(rate), Path(ledger))
