"""Send events to the topic exactlyonce.events: python examples/events_alerts/produce.py [2000]"""

import os
import sys
import time
from itertools import islice

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.tools import samples

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
made = samples.events(time.time_ns(), samples.as_they_come())
for key, value, _, _ in islice(made, count):
    producer.produce(TOPIC, value, key=key)
    producer.poll(0)
    time.sleep(0.002)  # no two events have the same millisecond
producer.flush()
print(f"{count:,} events in the topic {TOPIC} on {bootstrap}")
