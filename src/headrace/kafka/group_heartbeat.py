"""Heartbeats of a run whose offsets are a consumer group: in a group of their own.

A commit to the group itself would fence the run's producer, and a task that compares entries would find another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from headrace.core.state import RunLease
from headrace.errors import RetriableError
from headrace.kafka.client import TIMEOUT, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headrace.types import TopicPartition


class GroupHeartbeat:
    """Commits without a transaction to the group `<name>-heartbeat`, which nobody joins, on one of `places`."""

    def __init__(self, client: Client, group: str, places: Callable[[], Collection[TopicPartition]]) -> None:
        self._client = client
        self._group = f"{group}-heartbeat"
        self._places = places
        self._consumer: Any = None
        self._before: list[RunLease] | None = None
        """Runs whose heartbeats were there before the first one of this handle."""

    def open(self, pipeline: str) -> Self:
        self._consumer = self._client.consumer(self._group)
        return self

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def heartbeat(self, run: RunLease) -> bool:
        """False if another run has begun to send heartbeats. Whose sign is in the group, the run's own commits tell.

        The runs that were there before may be ahead by the clock, and one may even write once more: they are stopping.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Position

        if not (places := self._places()):
            return True  # no partition has an offset yet
        if (found := self._found()) is not None:
            if self._before is None:
                self._before = found
            if not all(
                run.is_same_run(other) or any(other.is_same_run(known) for known in self._before) for other in found
            ):
                return False
        at = min(places)
        try:
            self._consumer.commit(offsets=[Position(at.topic, at.partition, 0, run.to_json())], asynchronous=False)
        except KafkaException as error:
            raise RetriableError(f"the heartbeat could not be committed: {error.args[0].str()}") from error
        return True

    def newest(self, run: RunLease) -> RunLease | None:
        """The newest heartbeat of `run`; None if there is none, or if it cannot be read."""
        return max((own for own in self._found() or [] if run.is_same_run(own)), key=lambda own: own.beat, default=None)

    def _found(self) -> list[RunLease] | None:
        """The heartbeats of all runs; None if they cannot be read."""
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Position

        positions = [Position(at.topic, at.partition) for at in self._places()]
        try:
            found = self._consumer.committed(positions, timeout=TIMEOUT) if positions else []
        except KafkaException:
            return None
        return [RunLease.from_json(position.metadata) for position in found if position.metadata]
