"""Real servers on this machine, one per file."""

from headrace.dev.kafka import Kafka

__all__ = ["Kafka"]
