"""Reads the records of a topic that are visible to clients."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient


def count_undecided(admin: AdminClient, topic: str) -> int:
    """The number of records after the first open transaction, for which a read_committed reader waits."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import _listoffsets

    latest: Any = _listoffsets.OffsetSpec.latest
    partitions = [TopicPartition(topic, number) for number in admin.list_topics(topic).topics[topic].partitions]

    def ends(isolation: Any) -> int:
        futures = admin.list_offsets({at: latest() for at in partitions}, isolation_level=isolation)
        return sum(future.result().offset for future in futures.values())

    # Request the larger end first: transactions that end in between can then only make the result too small.
    uncommitted_end = ends(IsolationLevel.READ_UNCOMMITTED)
    return max(0, uncommitted_end - ends(IsolationLevel.READ_COMMITTED))


def read_committed(
    bootstrap: str, *topics: str, isolation: str = "read_committed", seconds: float = 30.0
) -> list[Message]:
    """All records up to the current ends of the topics, as a client with this `isolation.level` reads them.

    The end for a read_committed reader is before the first open transaction. AssertionError if it is not reached in
    time: a transaction was left open, or the end of one was not processed.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer
    from confluent_kafka import TopicPartition as Position

    options: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": f"reader-{uuid.uuid4().hex}",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "log_level": 0,
    }
    found: list[Message] = []
    consumer = Consumer(options)
    try:
        partitions: Sequence[Any] = [
            Position(topic, number, OFFSET_BEGINNING)
            for topic in topics
            for number in consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ]
        consumer.assign(list(partitions))
        left = {(at.topic, at.partition) for at in partitions}
        deadline = time.monotonic() + seconds
        while left:
            assert time.monotonic() < deadline, f"the end of {sorted(left)} was not reached in {seconds:g} s"
            for record in consumer.consume(10_000, timeout=0.1):
                if record.error() is None:
                    found.append(record)
                else:
                    left.discard((str(record.topic()), int(record.partition() or 0)))
        return found
    finally:
        consumer.close()
