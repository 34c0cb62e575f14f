"""A console consumer: records from a start offset to the current end, or following new ones."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import DataLoss, RetriableError
from headrace.kafka.client import TIMEOUT
from headrace.tools.records.producer import as_record
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.kafka.client import Client
    from headrace.tools.records.record import Record
    from headrace.tools.records.start_positions import ConsumePlan

_POLL_SECONDS = 0.2
_MAX_BATCH_RECORDS = 500
_REFRESH_SECONDS = 2.0
_SILENT_SECONDS = 30.0
_COMMIT_SECONDS = 5.0
_TRANSIENT = {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_MAX_POLL_EXCEEDED", "_RESOLVE", "_TIMED_OUT"}


class RecordConsumer:
    """`with RecordConsumer(…) as consumer: for records in consumer.batches(): …`

    Without a group, it assigns the partitions to itself, affects no other consumer and commits nothing. With a group,
    the members share the partitions, a committed offset overrides the start offset, and `mark_printed` commits.
    """

    def __init__(self, client: Client, plan: ConsumePlan, *, group: str | None, follow: bool) -> None:
        from confluent_kafka import Consumer

        self._client = client
        self._plan = plan
        self._group = group
        self._follow = follow
        self._ends: dict[TopicPartition, int] = {}
        self._next_commit: dict[TopicPartition, int] = {}
        self._partition_eof: dict[TopicPartition, tuple[int | None, int]] = {}
        self._assigned_partitions: set[TopicPartition] = set()
        self._batch: list[Record] = []
        self._names: list[str] = []
        self._joined = group is None
        self._refreshed = self._last_message = time.monotonic()
        owned = {
            "group.id": group or "headrace-consume",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # report an offset that retention has deleted; never skip it
            "enable.partition.eof": True,
        }
        defaults = {"isolation.level": "read_committed", "fetch.wait.max.ms": 100}
        self._cooperative = _cooperative(client.tuning)
        self._close_blocked = False
        self._consumer = client.build_tuned(Consumer, owned, defaults)

    def __enter__(self) -> RecordConsumer:
        names = self._plan.topic_names()
        start_offsets = self._plan.start_offsets(names)  # before joining the group: an error must not cause a rebalance
        if self._group is None:
            self._assigned_partitions |= start_offsets.keys()
            self._set_end_offsets(start_offsets)
            self._consumer.assign(_positions(start_offsets))
        else:
            self._subscribe(names)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._group is not None:
                self._commit_with_timeout()
        finally:
            if not self._close_blocked:  # otherwise a call still uses it; it ends with the process
                self._consumer.close()

    def batches(self) -> Iterator[list[Record]]:
        """Batches of records, empty while none arrive. Ends at the end offsets of the start, unless it follows."""
        while self._follow or not self._joined or self._ends:
            yield self._poll()
            if self._follow and time.monotonic() - self._refreshed > _REFRESH_SECONDS:
                with suppress(RetriableError):  # an unreachable broker may come back
                    self._refresh()

    def mark_printed(self, records: Iterable[Record]) -> None:
        """Record that these were printed. With a group, commit the offset after them."""
        for record in records:
            if record.offset is not None:
                self._next_commit[_partition_of(record)] = record.offset + 1
        self._skip_transaction_markers()
        if self._group is not None and self._next_commit:
            with self._translating_errors():
                self._consumer.commit(offsets=_positions(self._next_commit), asynchronous=True)

    def _skip_transaction_markers(self) -> None:
        """After the last printed record, commit past trailing transaction markers so they do not show as lag."""
        for at, (last, end) in self._partition_eof.items():
            next_offset = self._next_commit.get(at)
            if last is None or next_offset == last:
                self._next_commit[at] = end if next_offset is None else max(next_offset, end)
        self._partition_eof.clear()

    def _poll(self) -> list[Record]:
        """Return the available records without waiting for more, so that each is printed when it arrives."""
        self._batch.clear()
        message = self._next(_POLL_SECONDS)
        if message is None:
            self._check_idle_timeout()
            return []
        self._last_message = time.monotonic()
        while message is not None:
            if (error := message.error()) is not None:
                self._handle_error(error, message)
            else:
                self._accept(message)
            message = self._next(0) if len(self._batch) < _MAX_BATCH_RECORDS else None
        return list(self._batch)

    def _next(self, seconds: float) -> Any:
        return self._client.call(lambda: self._consumer.poll(seconds), "records")

    def _accept(self, message: Any) -> None:
        at = TopicPartition(message.topic(), message.partition())
        if self._follow or at in self._ends:  # otherwise it is past the end offset of the start
            self._batch.append(as_record(message))
            self._remove_if_done(at, message.offset() + 1)

    def _check_idle_timeout(self) -> None:
        """RetriableError if nothing arrives for long, unless it follows. A group drops a dead member after 45 s."""
        timeout = _SILENT_SECONDS if self._joined else 2 * _SILENT_SECONDS
        if not self._follow and time.monotonic() - self._last_message > timeout:
            raise RetriableError(
                f"Kafka at {self._client.bootstrap} has not answered for {timeout:g} s",
                hint=f"headrace doctor --bootstrap {self._client.bootstrap}",
            )

    def _remove_if_done(self, at: TopicPartition, offset: int) -> None:
        if offset >= self._ends.get(at, offset + 1):
            del self._ends[at]

    def _record_eof(self, at: TopicPartition, end: int) -> None:
        if self._follow or at in self._ends:  # otherwise there may be records after the end offset
            unprinted = [
                record.offset for record in self._batch if _partition_of(record) == at and record.offset is not None
            ]
            self._partition_eof[at] = (unprinted[-1] + 1 if unprinted else None, end)
        self._remove_if_done(at, end)

    def _handle_error(self, error: Any, message: Any) -> None:
        from confluent_kafka import KafkaError

        at = TopicPartition(message.topic() or "", message.partition() or 0)
        if error.code() == KafkaError._PARTITION_EOF:
            self._record_eof(at, message.offset())
        elif self._group is None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # the client looks up the coordinator although it does not join the group
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            cure = (
                f"headrace groups delete {self._group} --execute deletes its offsets"
                if self._group
                else "--from earliest"
            )
            raise DataLoss(f"{at}: records to be read no longer exist: {error.str()}", hint=cure)
        elif error.name() not in _TRANSIENT:
            raise self._client.to_headrace_error(error, f"the records of {at.topic or 'these topics'}")

    def _set_end_offsets(self, start_offsets: Mapping[TopicPartition, int]) -> None:
        """Read to the current end offsets."""
        if not self._follow:
            ends = self._plan.end_offsets(start_offsets)
            self._ends |= {at: end for at, end in ends.items() if start_offsets[at] < end}

    def _refresh(self) -> None:
        """Read new partitions, and new topics that match the pattern, from their first offset."""
        self._refreshed = time.monotonic()
        if self._group is None:
            new = self._plan.new_partitions(self._assigned_partitions)
            if new:
                self._assigned_partitions |= new.keys()
                self._consumer.incremental_assign(_positions(new))
        elif self._plan.wanted.pattern is not None:
            self._subscribe(self._plan.topic_names())

    def _subscribe(self, names: list[str]) -> None:
        if names != self._names:  # it causes a rebalance
            self._names = names
            self._consumer.subscribe(names, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        """The group assigned these partitions. One without a committed offset starts at its start offset."""
        committed = consumer.committed(partitions, timeout=TIMEOUT) if partitions else []
        if any(position.offset < 0 for position in committed):
            start_offsets = self._plan.start_offsets(sorted({position.topic for position in partitions}))
            for position in committed:
                if position.offset < 0:
                    at = TopicPartition(position.topic, position.partition)
                    # Commit also without any record, so that the next start begins here.
                    position.offset = self._next_commit[at] = start_offsets[at]
        start_offsets = {TopicPartition(p.topic, p.partition): p.offset for p in committed}
        self._set_end_offsets(start_offsets)
        self._joined = True
        if self._cooperative:
            consumer.incremental_assign(committed)
        else:
            consumer.assign(committed)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        """Commit, so that the next owner begins after the records that were printed here."""
        self._commit()
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        """Other members own these partitions already: nothing can be committed."""
        lost = {TopicPartition(position.topic, position.partition) for position in partitions}
        self._batch[:] = [record for record in self._batch if _partition_of(record) not in lost]
        for at in lost:
            self._next_commit.pop(at, None)
            self._partition_eof.pop(at, None)
            self._ends.pop(at, None)
        if self._cooperative:  # the other partitions stay assigned
            consumer.incremental_unassign(partitions)
        else:
            self._joined = False
            consumer.unassign()

    def _commit(self) -> None:
        """Commit the offsets after all printed records, and wait for the response."""
        if self._next_commit:
            with self._translating_errors():
                self._consumer.commit(offsets=_positions(self._next_commit), asynchronous=False)
            self._next_commit.clear()

    def _commit_with_timeout(self) -> None:
        """The same with a timeout, because librdkafka waits longer for an unreachable broker. Not to be called within a
        callback of librdkafka, which blocks other threads."""
        failed: list[Exception] = []

        def commit() -> None:
            try:
                self._commit()
            except Exception as error:
                failed.append(error)

        committer = threading.Thread(target=commit, name="headrace-commit", daemon=True)
        committer.start()
        committer.join(_COMMIT_SECONDS)
        self._close_blocked = committer.is_alive()
        if self._close_blocked:
            raise RetriableError(
                f"Kafka at {self._client.bootstrap} does not accept the offsets of the group {self._group}:"
                " the last records may be printed again",
                hint=f"headrace doctor --bootstrap {self._client.bootstrap}",
            )
        if failed:
            raise failed[0]

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self._client.to_headrace_error(error.args[0], f"the offsets of the group {self._group}") from error


def _partition_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition or 0)


def _cooperative(tuning: Mapping[str, str]) -> bool:
    """Whether members keep their partitions in a rebalance, so that only changes are assigned."""
    strategy = tuning.get("partition.assignment.strategy", "")
    return strategy.startswith("cooperative") or tuning.get("group.protocol", "").lower() == "consumer"


def _positions(offsets: Mapping[TopicPartition, int]) -> list[Any]:
    from confluent_kafka import TopicPartition as Position

    return [Position(at.topic, at.partition, offset) for at, offset in offsets.items()]
