"""Copies records of a topic with Quix Streams, exactly once; it runs in an environment of its own.

python quix.py BOOTSTRAP SOURCE TARGET RECORDS: prints the seconds from the call of run() to its return.
"""

import sys
import time
import uuid

from quixstreams import Application


def copied(bootstrap: str, source: str, target: str, records: int) -> float:
    app = Application(
        broker_address=bootstrap,
        consumer_group=f"quix-{uuid.uuid4().hex}",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        auto_create_topics=False,
        loglevel="ERROR",
        producer_extra_config={"linger.ms": 20, "compression.type": "lz4"},
        consumer_extra_config={"fetch.wait.max.ms": 5},
    )
    read = app.topic(source, value_deserializer="bytes", key_deserializer="bytes")
    written = app.topic(target, value_serializer="bytes", key_serializer="bytes")
    app.dataframe(read).to_topic(written)
    began = time.perf_counter()
    app.run(count=records)
    return time.perf_counter() - began


if __name__ == "__main__":
    bootstrap, source, target, records = sys.argv[1:]
    print(copied(bootstrap, source, target, int(records)))
