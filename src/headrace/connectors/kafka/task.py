"""Runs in the tasks of a batch: produces rows and commits the offset of their range in one transaction."""

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
    """A newer producer has this task's transactional id: a later attempt of the task, or another run."""


class _StaleProducer(Exception):
    """A cached producer is fenced, and a new one can send again all rows read so far."""


@dataclass(frozen=True, slots=True)
class PartitionWrite:
    """The commit of one task: the offset of a range moves from `before` to `after`.

    `topic` is its name in the target cluster.
    """

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
    """Produces the rows of a range and commits its offset. Of several attempts the one that began last commits; the
    transactions of the others are aborted."""

    target: TopicTarget
    group: str
    writes: tuple[PartitionWrite, ...]
    check_topics: Callable[[], None] | None = None
    """Compares the current topic ids with those that the batch was planned with."""

    def __call__(self, batches: Iterator[Any]) -> Report:
        from confluent_kafka import KafkaException
        from pyspark import TaskContext

        client, context = self.target.client, TaskContext.get()
        write = self.writes[context.partitionId() if context else 0]
        batches = iter(batches)
        try:
            return Report(self._write(write, batches))
        except KafkaException as error:
            if error.args[0].name() in FENCED:
                raise Fenced(write.transactional_id) from error  # so that Spark uses another attempt
            raise client.to_headrace_error(error.args[0], f"a transaction of {write.range}") from error
        except TimeoutError as error:
            raise RetriableError(f"Kafka at {client.bootstrap} does not answer for {write.range}") from error

    def _write(self, write: PartitionWrite, batches: Iterator[Any]) -> int:
        read: list[Any] = []
        try:
            return self._attempt(write, read, batches)
        except _StaleProducer:
            # This worker wrote the partition in an earlier batch, and another worker has written it since.
            return self._attempt(write, read, batches)

    def _attempt(self, write: PartitionWrite, read: list[Any], batches: Iterator[Any]) -> int:
        """Send `read`, then `batches`. As long as batches may have to be sent again, those taken from `batches` are
        added to `read`."""
        from confluent_kafka import KafkaException

        key = (self.target.client.bootstrap, write.transactional_id)
        is_newest = key not in tasks.WORKER_CACHE  # a new producer is the newest
        producer = tasks.worker_cached(key, lambda: self._producer(write), lambda cached: cached.purge())
        before = tuple(read)
        try:
            if self._is_committed(write):
                return 0
            rows = 0
            producer.begin_transaction()
            for number, records in enumerate(chain(before, batches)):
                if not is_newest:
                    read.append(records)
                if not is_newest and number == 1:
                    producer.flush(PATIENCE)  # raises if it is not the newest
                    is_newest = True
                    read.clear()
                rows += send(producer, self.target, records, write.range.at)
            if self.check_topics is not None:
                self.check_topics()
            self.target.flush(producer)
            membership = self._consumer().consumer_group_metadata()
            call_with_timeout(lambda: commit(producer, [write.position()], membership), PATIENCE)
            return rows
        except BaseException as error:
            _abort(producer)
            tasks.evict(key)
            if not is_newest and isinstance(error, KafkaException) and error.args[0].name() in FENCED:
                raise _StaleProducer from error
            raise

    def _is_committed(self, write: PartitionWrite) -> bool:
        """Whether an earlier attempt has committed; OffsetConflict if the committed offset is not `write.before`.

        Checked after `init_transactions`: a later commit under this id fences this producer first. A run that takes
        over commits other metadata, so a task that begins after that fails here.
        """
        (position,) = self._consumer().committed([write.position()], timeout=TIMEOUT)
        committed = None if position.offset < 0 else CommittedOffset(position.offset, position.metadata or "")
        if committed == write.after:
            return True
        if committed != write.before:
            found = "no committed offset" if committed is None else f"committed offset {committed.offset}"
            raise OffsetConflict(
                f"{write.range} was refused: it has {found}, or another run has taken over",
                hint="another run of this pipeline is active; let one of them finish, or stop it",
            )
        return False

    def _producer(self, write: PartitionWrite) -> Any:
        settings = {**self.target.producer_settings, "transactional.id": write.transactional_id}
        return call_with_timeout(lambda: init_transactions(self.target.client.producer(settings)), PATIENCE)

    def _consumer(self) -> Any:
        client = self.target.client
        return tasks.worker_cached((client.bootstrap, "group", self.group), lambda: client.consumer(self.group))


def _abort(producer: Any) -> None:
    """Abort a transaction: an open one blocks readers of committed records. If this fails, the next attempt ends it."""
    with suppress(Exception):
        producer.purge()
        call_with_timeout(lambda: producer.abort_transaction(TIMEOUT), TIMEOUT)
