"""Send events to the topic exactlyonce.events: python examples/events_alerts/produce.py [2000]"""

import json
import os
import random
import sys
import time
from datetime import UTC, datetime

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPIC = "exactlyonce.events"
bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092")
count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000

admin = AdminClient({"bootstrap.servers": bootstrap})
try:
    admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(30)
except KafkaException as error:
    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise

producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
for _ in range(count):
    time.sleep(0.002)  # no two events have the same millisecond
    now = time.time_ns() // 1_000_000
    event = {
        "id": now,
        "ts": datetime.fromtimestamp(now / 1_000, UTC).isoformat(timespec="milliseconds"),
        "source": f"source-{random.randrange(10)}",  # noqa: S311 - made-up events
        "client": f"client-{random.randrange(100)}",  # noqa: S311
        "health": random.randrange(101),  # noqa: S311
    }
    producer.produce(TOPIC, json.dumps(event).encode(), key=event["source"])
    producer.poll(0)
producer.flush()
print(f"{count:,} events in the topic {TOPIC} on {bootstrap}")
