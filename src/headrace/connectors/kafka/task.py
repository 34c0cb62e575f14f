"""What the tasks of a batch do on the executors: produce rows and move their range's offset, in one transaction."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.produce import TopicTarget, send
from headrace.errors import OffsetConflict, RetriableError
from headrace.kafka.client import TIMEOUT
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.kafka.transactions import FENCED, PATIENCE, call_with_timeout, commit, init_transactions
from headrace.spark import tasks
from headrace.spark.tasks import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.types import Range


class Fenced(Exception):
    """Another attempt of this task, or a run that took over, has begun after this one."""


class _Stale(Exception):
    """The same, known while all the rows that were read are still at hand."""


@dataclass(frozen=True, slots=True)
class PartitionWrite:
    """What one task moves: a range, under the name its topic has at the target, from one entry of the group to the
    next."""

    range: Range
    topic: str
    before: CommittedOffset | None
    after: CommittedOffset
    transactional_id: str

    def position(self) -> Any:
        from confluent_kafka import TopicPartition as Position

        return Position(self.topic, self.range.at.partition, self.after.offset, self.after.metadata)


@dataclass(frozen=True, slots=True)
class TransactionalProduceTask:
    """Of several attempts the last to begin wins; what the others produced is aborted."""

    target: TopicTarget
    group: str
    parts: tuple[PartitionWrite, ...]
    unchanged: Callable[[], None] | None = None
    """Compares the topic ids with those that the batch was planned with."""

    def __call__(self, batches: Iterator[Any]) -> Report:
        from confluent_kafka import KafkaException
        from pyspark import TaskContext

        client, context = self.target.client, TaskContext.get()
        part = self.parts[context.partitionId() if context else 0]
        batches = iter(batches)
        try:
            return Report(self._written(part, batches))
        except KafkaException as error:
            if error.args[0].name() in FENCED:
                raise Fenced(part.transactional_id) from error  # so that Spark counts another attempt, not this one
            raise client.to_headrace_error(error.args[0], f"a transaction of {part.range}") from error
        except TimeoutError as error:
            raise RetriableError(f"Kafka at {client.bootstrap} does not answer for {part.range}") from error

    def _written(self, part: PartitionWrite, batches: Iterator[Any]) -> int:
        read: list[Any] = []
        try:
            return self._attempt(part, read, batches)
        except _Stale:
            # This worker had the partition in an earlier batch, and another worker has had it since.
            return self._attempt(part, read, batches)

    def _attempt(self, part: PartitionWrite, read: list[Any], batches: Iterator[Any]) -> int:
        """`read` is what came out of `batches` before, and as long as it may have to be sent again what comes now."""
        from confluent_kafka import KafkaException

        key = (self.target.client.bootstrap, part.transactional_id)
        sure = key not in tasks.WORKER_CACHE  # a new producer is the newest
        producer = tasks.worker_cached(key, lambda: self._producer(part), lambda made: made.purge())
        before = tuple(read)
        try:
            if self._is_there(part):
                return 0
            rows = 0
            producer.begin_transaction()
            for number, records in enumerate(chain(before, batches)):
                if not sure:
                    read.append(records)
                if not sure and number == 1:
                    producer.flush(PATIENCE)  # raises if it is not the newest
                    sure = True
                    read.clear()
                rows += send(producer, self.target, records, part.range.at)
            if self.unchanged is not None:
                self.unchanged()
            self.target.flush(producer)
            membership = self._consumer().consumer_group_metadata()
            call_with_timeout(lambda: commit(producer, [part.position()], membership), PATIENCE)
            return rows
        except BaseException as error:
            _abort(producer)
            tasks.evict(key)
            if not sure and isinstance(error, KafkaException) and error.args[0].name() in FENCED:
                raise _Stale from error
            raise

    def _is_there(self, part: PartitionWrite) -> bool:
        """Whether an earlier attempt has committed; OffsetConflict if the entry is not the one it was planned from.

        Asked under this producer's epoch: whoever commits after this with the same id has fenced it before. And a run
        that takes over puts another entry there, so a task that begins after that finds out here.
        """
        (found,) = self._consumer().committed([part.position()], timeout=TIMEOUT)
        there = None if found.offset < 0 else CommittedOffset(found.offset, found.metadata or "")
        if there == part.after:
            return True
        if there != part.before:
            stands = "nowhere" if there is None else f"at {there.offset}"
            raise OffsetConflict(
                f"{part.range} was refused: its offset stands {stands}, or another run has taken over",
                hint="another run of this pipeline is active; let one of them finish, or stop it",
            )
        return False

    def _producer(self, part: PartitionWrite) -> Any:
        settings = {**self.target.producing, "transactional.id": part.transactional_id}
        return call_with_timeout(lambda: init_transactions(self.target.client.producer(settings)), PATIENCE)

    def _consumer(self) -> Any:
        client = self.target.client
        return tasks.worker_cached((client.bootstrap, "group", self.group), lambda: client.consumer(self.group))


def _abort(producer: Any) -> None:
    """Readers wait at an open transaction until somebody ends it; if this cannot, the next attempt does."""
    with suppress(Exception):
        producer.purge()
        call_with_timeout(lambda: producer.abort_transaction(TIMEOUT), TIMEOUT)
