"""A producer with a ledger of acknowledged records and of those with an unknown outcome."""

import itertools
import json
import threading
import time
from contextlib import contextmanager

from confluent_kafka import Producer

from crash.pipelines import record
from headrace.testing import compare


class Feed:
    """Sends numbered records to one topic. Unknown outcomes are recorded separately: a failed send may have arrived."""

    def __init__(self, bootstrap, topic, partitions):
        self.acknowledged = []
        self.unknown = []
        self._topic = topic
        self._partitions = partitions
        self._numbers = itertools.count()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
        )

    def send(self, count):
        """Produce and wait until acknowledged."""
        self._produce(count)
        self._settle()

    def send_as_it_is(self, value):
        """Send a record that is not in the ledger."""
        self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(30) == 0

    @contextmanager
    def flowing(self, rate):
        """Produce `rate` records per second in a thread until the block ends, then wait for their outcomes."""
        ending = threading.Event()

        def flow():
            began, sent = time.monotonic(), 0
            while not ending.wait(0.02):
                due = int((time.monotonic() - began) * rate)
                self._produce(due - sent)
                sent = due

        thread = threading.Thread(target=flow, name="feed", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()
            self._settle()

    def compare(self, stored):
        """Compare the ledger with the rows. A record with an unknown outcome may be stored once or not at all."""
        there = set(stored)
        return compare([*self.acknowledged, *(row for row in self.unknown if row in there)], stored)

    def _produce(self, count):
        for number in itertools.islice(self._numbers, count):
            value = json.dumps(record(number)).encode()
            self._producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error, message):
        row = json.loads(message.value())
        (self.unknown if error else self.acknowledged).append((row["id"], row["value"]))

    def _settle(self):
        left = self._producer.flush(120)
        assert left == 0, f"{left} records neither acknowledged nor refused after two minutes"
