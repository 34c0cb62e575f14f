"""Sends records at a given rate or at given times."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.tools.records.producer import TopicProducer
    from headrace.tools.records.record import Record

_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is not a valid record: what could be parsed, and the reason."""

    record: Record
    reason: str


def send_all(
    sender: TopicProducer,
    records: Iterator[Record | InvalidLine | None],
    stop: Callable[[], bool],
    due: Callable[[int], float] | None = None,
    count: int | None = None,
) -> None:
    """Send each record when it is due, and request it only then. `due` returns the seconds from the start to the record
    with a number. A record None means that none is available yet."""
    began, number = time.monotonic(), 0
    while number != count and not stop():
        if due is not None and not wait_for_delivery(sender, began + due(number), stop):
            return
        try:
            record = next(records)
        except StopIteration:
            return
        if record is None:
            sender.wait(0)
            if due is not None:  # do not catch up after an input stall
                began = max(began, time.monotonic() - due(number))
            continue
        if isinstance(record, InvalidLine):
            sender.refuse(record.record, record.reason)
        else:
            sender.send(record)
        number += 1


def wait_for_delivery(sender: TopicProducer, until: float, stop: Callable[[], bool]) -> bool:
    """Wait until the time `until`; False if it was stopped before."""
    while (left := until - time.monotonic()) > 0:
        if stop():
            return False
        sender.wait(min(left, _PAUSE))
    return True
