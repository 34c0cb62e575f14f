"""Copies a topic with confluent-kafka alone, exactly once: consume, produce, offsets into the transaction, commit.

python bare.py BOOTSTRAP SOURCE TARGET RECORDS: prints the seconds from the first question to the last commit.
"""

import sys
import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

EACH = 50_000  # records a transaction


def copied(bootstrap: str, source: str, target: str, records: int) -> float:
    name = f"bare-{uuid.uuid4().hex}"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
        }
    )
    began = time.perf_counter()
    producer.init_transactions(30)
    partitions = consumer.list_topics(source, timeout=10).topics[source].partitions
    consumer.assign([TopicPartition(source, number, 0) for number in partitions])
    done = 0
    while done < records:
        producer.begin_transaction()
        taken = 0
        while taken < min(EACH, records - done):
            messages = consumer.consume(10_000, timeout=0.2)
            for message in messages:
                producer.produce(target, message.value(), message.key())
            producer.poll(0)
            taken += len(messages)
        positions = consumer.position([TopicPartition(source, number) for number in partitions])
        producer.send_offsets_to_transaction(
            [p for p in positions if p.offset >= 0], consumer.consumer_group_metadata()
        )
        producer.commit_transaction(60)
        done += taken
    return time.perf_counter() - began


if __name__ == "__main__":
    bootstrap, source, target, records = sys.argv[1:]
    print(copied(bootstrap, source, target, int(records)))
