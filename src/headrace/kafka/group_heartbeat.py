"""Heartbeats of a run whose offsets are in a consumer group, committed to a separate group.

A commit to the group itself would fence the producer of the run, and change the metadata that tasks compare.
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
    """Commits heartbeats without transactions to the memberless group `<name>-heartbeat`, for one of `partitions`."""

    def __init__(self, client: Client, group: str, partitions: Callable[[], Collection[TopicPartition]]) -> None:
        self._client = client
        self._group = f"{group}-heartbeat"
        self._partitions = partitions
        self._consumer: Any = None
        self._earlier: list[RunLease] | None = None
        """Runs whose heartbeats were committed before the first heartbeat of this object."""

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
        """False if another run has begun to send heartbeats. The run's own commits check its lease.

        Earlier runs do not count: their clocks may be ahead, and they may send another heartbeat while they stop.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Position

        if not (partitions := self._partitions()):
            return True  # no partition has an offset yet
        if (beats := self._read()) is not None:
            if self._earlier is None:
                self._earlier = beats
            if not all(
                run.is_same_run(other) or any(other.is_same_run(known) for known in self._earlier) for other in beats
            ):
                return False
        at = min(partitions)
        try:
            self._consumer.commit(offsets=[Position(at.topic, at.partition, 0, run.to_json())], asynchronous=False)
        except KafkaException as error:
            raise RetriableError(f"the heartbeat could not be committed: {error.args[0].str()}") from error
        return True

    def newest(self, run: RunLease) -> RunLease | None:
        """The newest heartbeat of `run`; None if there is none, or if it cannot be read."""
        return max((own for own in self._read() or [] if run.is_same_run(own)), key=lambda own: own.beat, default=None)

    def _read(self) -> list[RunLease] | None:
        """The heartbeats of all runs; None if they cannot be read."""
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Position

        positions = [Position(at.topic, at.partition) for at in self._partitions()]
        try:
            committed = self._consumer.committed(positions, timeout=TIMEOUT) if positions else []
        except KafkaException:
            return None
        return [RunLease.from_json(position.metadata) for position in committed if position.metadata]
