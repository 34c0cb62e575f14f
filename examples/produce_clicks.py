"""Make the topic `clicks` and put 10,000 clicks into it: python examples/produce_clicks.py

The same by hand: headrace topics create clicks --partitions 4
                  headrace produce clicks --sample clicks --count 10000 --start 200000s --every 20s
"""

import os
from datetime import UTC, datetime, timedelta
from itertools import islice

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.tools import samples

bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092")
admin = AdminClient({"bootstrap.servers": bootstrap})
try:
    admin.create_topics([NewTopic("clicks", 4, 1)])["clicks"].result(30)
except KafkaException as error:
    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise

producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
every = timedelta(seconds=20)  # up to now: a little more than two days of them
times = samples.spaced(datetime.now(UTC) - 9_999 * every, every)
for key, value, _, _ in islice(samples.clicks(1, times), 10_000):
    producer.produce("clicks", value, key=key)
    producer.poll(0)
producer.flush()
print(f"10,000 clicks in the topic clicks on {bootstrap}")
