"""Make the topic `clicks` and put 10,000 clicks into it: python examples/produce_clicks.py"""

import json
import os
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092")
admin = AdminClient({"bootstrap.servers": bootstrap})
try:
    admin.create_topics([NewTopic("clicks", 4, 1)])["clicks"].result(30)
except KafkaException as error:
    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise

producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
now = datetime.now(UTC)
for number in range(10_000):  # one every 20 seconds, up to now: a little more than two days of them
    at = now - timedelta(seconds=20 * (9_999 - number))
    click = {"user": f"user-{number % 500}", "page": f"/articles/{number % 97}", "at": at.isoformat()}
    producer.produce("clicks", json.dumps(click).encode(), key=click["user"])
    producer.poll(0)
producer.flush()
print(f"10,000 clicks in the topic clicks on {bootstrap}")
