"""The demo's producer, a process of its own: clicks at a steady rate, and a ledger of those acknowledged."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from array import array
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

PAGES = ("/", "/cart", "/checkout", "/help", "/login", "/product", "/search")


def click(number: int) -> dict[str, Any]:
    """The click with this number, apart from its time: anyone can tell what it must look like."""
    return {"id": number, "user": f"user-{number * 7919 % 5000}", "page": PAGES[number * 31 % len(PAGES)]}


def produce(bootstrap: str, topic: str, at_least: int, rate: int, ledger: Path) -> None:
    """Produce `at_least` clicks and go on until SIGTERM; append the id of every acknowledged one to `ledger`."""
    from confluent_kafka import Producer

    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    acknowledged = array("q")

    def acked(number: int, error: Any, _: Any) -> None:
        if error is None:
            acknowledged.append(number)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    began = time.monotonic()
    sent = 0
    with ledger.open("ab", buffering=0) as out:
        while not (stopping and sent >= at_least):
            due = int((time.monotonic() - began) * rate)
            for number in range(sent, due):
                at = datetime.now(UTC).isoformat(timespec="milliseconds")
                value = json.dumps({**click(number), "at": at}).encode()
                producer.produce(
                    topic,
                    value,
                    key=f"user-{random.randrange(5000)}",  # noqa: S311 - spreads over partitions, guards nothing
                    on_delivery=partial(acked, number),
                )
            sent = max(sent, due)
            producer.poll(0.02)
            _write(out, acknowledged)
        producer.flush(60)
        _write(out, acknowledged)


def _write(out: Any, acknowledged: array[int]) -> None:
    if acknowledged:
        out.write(acknowledged.tobytes())
        del acknowledged[:]


if __name__ == "__main__":
    _, bootstrap, topic, at_least, rate, ledger = sys.argv
    produce(bootstrap, topic, int(at_least), int(rate), Path(ledger))
