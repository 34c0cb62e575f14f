"""The one topic that every benchmark reads: JSON clicks of 100 to 150 bytes."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 4


def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient(
        {"bootstrap.servers": bootstrap, "log_level": 0}
    )  # a client without a name is gone before it answers
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result()


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Create `topic` and put `records` into it, the same number in each partition."""
    if records % PARTITIONS:
        raise ValueError(f"{records} records do not spread evenly over {PARTITIONS} partitions")
    create(bootstrap, topic, PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    failed: list[str] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failed.append(str(error))

    for number in range(records):
        value = (
            f'{{"id":{number},"user":"user-{number * 7919 % 100_000:06d}","page":"/articles/{number * 31 % 9973}",'
            f'"at":"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000Z",'
            f'"ms":{number * 13 % 30_000}}}'
        )
        while True:
            try:
                producer.produce(topic, value.encode(), partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 5_000 == 0:
            producer.poll(0)
    producer.flush()
    if failed:
        raise RuntimeError(f"{len(failed)} records were not stored: {failed[0]}")
