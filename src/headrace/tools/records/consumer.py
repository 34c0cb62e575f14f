"""Records out of topics for people to look at: from where they say, to the end or on and on."""

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
_AT_ONCE = 500
_REFRESH_SECONDS = 2.0
_SILENT_SECONDS = 30.0
_COMMIT_SECONDS = 5.0
_PASSING = {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_MAX_POLL_EXCEEDED", "_RESOLVE", "_TIMED_OUT"}


class RecordConsumer:
    """`with Reading(…) as reading: for records in reading.batches(): …`

    Without a group partitions are assigned, nobody else is concerned, and nothing is committed. With one, its
    members share the partitions, a committed offset counts more than the places to begin, and `done` moves it.
    """

    def __init__(self, client: Client, places: ConsumePlan, *, group: str | None, follow: bool) -> None:
        from confluent_kafka import Consumer

        self._client = client
        self._places = places
        self._group = group
        self._follow = follow
        self._ends: dict[TopicPartition, int] = {}
        self._next_commit: dict[TopicPartition, int] = {}
        self._over: dict[TopicPartition, tuple[int | None, int]] = {}
        self._known: set[TopicPartition] = set()
        self._found: list[Record] = []
        self._names: list[str] = []
        self._joined = group is None
        self._refreshed = self._answered = time.monotonic()
        owned = {
            "group.id": group or "headrace-consume",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # an offset that has aged out is told, never skipped
            "enable.partition.eof": True,
        }
        usual = {"isolation.level": "read_committed", "fetch.wait.max.ms": 100}
        self._cooperative = _cooperative(client.tuning)
        self._close_blocked = False
        self._consumer = client.build_tuned(Consumer, owned, usual)

    def __enter__(self) -> RecordConsumer:
        names = self._places.names()
        begins = self._places.begins(names)  # what cannot work is said before others are bothered
        if self._group is None:
            self._known |= begins.keys()
            self._set_end_offsets(begins)
            self._consumer.assign(_positions(begins))
        else:
            self._subscribe(names)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._group is not None:
                self._commit_soon()
        finally:
            if not self._close_blocked:  # else it is in use, and ends with the process
                self._consumer.close()

    def batches(self) -> Iterator[list[Record]]:
        """Empty while nothing comes. Ends where the log ended at the start, unless it follows."""
        while self._follow or not self._joined or self._ends:
            yield self._poll()
            if self._follow and time.monotonic() - self._refreshed > _REFRESH_SECONDS:
                with suppress(RetriableError):  # a broker that is away may come back
                    self._refresh()

    def done(self, records: Iterable[Record]) -> None:
        """These were printed: with a group, its offset moves behind them."""
        for record in records:
            if record.offset is not None:
                self._next_commit[_at(record)] = record.offset + 1
        self._skip_transaction_markers()
        if self._group is not None and self._next_commit:
            with self._told():
                self._consumer.commit(offsets=_positions(self._next_commit), asynchronous=True)

    def _skip_transaction_markers(self) -> None:
        """Where all records up to the end of a partition were printed, pass what lies behind the last one: the marks of
        transactions, which nobody is ever given, and which would count as lag."""
        for at, (last, end) in self._over.items():
            behind = self._next_commit.get(at)
            if last is None or behind == last:
                self._next_commit[at] = end if behind is None else max(behind, end)
        self._over.clear()

    def _poll(self) -> list[Record]:
        """What is there, without waiting for more: a record is shown when it comes."""
        self._found.clear()
        message = self._next(_POLL_SECONDS)
        if message is None:
            self._check_idle_timeout()
            return []
        self._answered = time.monotonic()
        while message is not None:
            if (error := message.error()) is not None:
                self._handle_error(error, message)
            else:
                self._accept(message)
            message = self._next(0) if len(self._found) < _AT_ONCE else None
        return list(self._found)

    def _next(self, seconds: float) -> Any:
        return self._client.call(lambda: self._consumer.poll(seconds), "records")

    def _accept(self, message: Any) -> None:
        at = TopicPartition(message.topic(), message.partition())
        if self._follow or at in self._ends:  # else it came after the end that was agreed on
            self._found.append(as_record(message))
            self._reached(at, message.offset() + 1)

    def _check_idle_timeout(self) -> None:
        """Who follows waits; who reads to the end must be answered. A group lets go of a dead member in 45 s."""
        patience = _SILENT_SECONDS if self._joined else 2 * _SILENT_SECONDS
        if not self._follow and time.monotonic() - self._answered > patience:
            raise RetriableError(
                f"Kafka at {self._client.bootstrap} has not answered for {patience:g} s",
                hint=f"headrace doctor --bootstrap {self._client.bootstrap}",
            )

    def _reached(self, at: TopicPartition, offset: int) -> None:
        if offset >= self._ends.get(at, offset + 1):
            del self._ends[at]

    def _ended(self, at: TopicPartition, end: int) -> None:
        if self._follow or at in self._ends:  # else there may be records that came after the end that was agreed on
            unprinted = [record.offset for record in self._found if _at(record) == at and record.offset is not None]
            self._over[at] = (unprinted[-1] + 1 if unprinted else None, end)
        self._reached(at, end)

    def _handle_error(self, error: Any, message: Any) -> None:
        from confluent_kafka import KafkaError

        at = TopicPartition(message.topic() or "", message.partition() or 0)
        if error.code() == KafkaError._PARTITION_EOF:
            self._ended(at, message.offset())
        elif self._group is None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # the client asks for a group that it has by name alone
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            forget = f"headrace groups delete {self._group} --execute forgets it" if self._group else "--from earliest"
            raise DataLoss(f"{at}: records that were to be read are gone: {error.str()}", hint=forget)
        elif error.name() not in _PASSING:
            raise self._client.to_headrace_error(error, f"the records of {at.topic or 'these topics'}")

    def _set_end_offsets(self, begins: Mapping[TopicPartition, int]) -> None:
        """The ends to read to are those of now."""
        if not self._follow:
            ends = self._places.ends(begins)
            self._ends |= {at: end for at, end in ends.items() if begins[at] < end}

    def _refresh(self) -> None:
        """New partitions, and new topics of a pattern, are read from their beginning."""
        self._refreshed = time.monotonic()
        if self._group is None:
            new = self._places.newcomers(self._known)
            if new:
                self._known |= new.keys()
                self._consumer.incremental_assign(_positions(new))
        elif self._places.wanted.pattern is not None:
            self._subscribe(self._places.names())

    def _subscribe(self, names: list[str]) -> None:
        if names != self._names:  # for it makes all members share out anew
            self._names = names
            self._consumer.subscribe(names, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _assigned(self, consumer: Any, given: list[Any]) -> None:
        """The group gave us these: a committed offset counts; where there is none, the place to begin does."""
        committed = consumer.committed(given, timeout=TIMEOUT) if given else []
        if any(position.offset < 0 for position in committed):
            begins = self._places.begins(sorted({position.topic for position in given}))
            for position in committed:
                if position.offset < 0:
                    at = TopicPartition(position.topic, position.partition)
                    # Committed with the first records, or without any: the next start goes on here.
                    position.offset = self._next_commit[at] = begins[at]
        begins = {TopicPartition(p.topic, p.partition): p.offset for p in committed}
        self._set_end_offsets(begins)
        self._joined = True
        if self._cooperative:
            consumer.incremental_assign(committed)
        else:
            consumer.assign(committed)

    def _revoked(self, consumer: Any, taken: list[Any]) -> None:
        """Whoever reads on begins behind what was printed here; what was not yet, they print."""
        self._commit()
        self._lost(consumer, taken)

    def _lost(self, consumer: Any, taken: list[Any]) -> None:
        """The same if others have them already: then nothing can be committed."""
        gone = {TopicPartition(position.topic, position.partition) for position in taken}
        self._found[:] = [record for record in self._found if _at(record) not in gone]
        for at in gone:
            self._next_commit.pop(at, None)
            self._over.pop(at, None)
            self._ends.pop(at, None)
        if self._cooperative:  # the others are kept, and read on
            consumer.incremental_unassign(taken)
        else:
            self._joined = False
            consumer.unassign()

    def _commit(self) -> None:
        """Where all that was printed ends, and wait for the answer."""
        if self._next_commit:
            with self._told():
                self._consumer.commit(offsets=_positions(self._next_commit), asynchronous=False)
            self._next_commit.clear()

    def _commit_soon(self) -> None:
        """The same, but not for as long as the client would wait for a broker that is away. Not where the client calls
        us: it lets nobody else in, then."""
        failed: list[Exception] = []

        def commit() -> None:
            try:
                self._commit()
            except Exception as error:
                failed.append(error)

        asking = threading.Thread(target=commit, name="headrace-commit", daemon=True)
        asking.start()
        asking.join(_COMMIT_SECONDS)
        self._close_blocked = asking.is_alive()
        if self._close_blocked:
            raise RetriableError(
                f"Kafka at {self._client.bootstrap} does not take the offsets of the group {self._group}:"
                " what was printed last may be printed again",
                hint=f"headrace doctor --bootstrap {self._client.bootstrap}",
            )
        if failed:
            raise failed[0]

    @contextmanager
    def _told(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self._client.to_headrace_error(error.args[0], f"the offsets of the group {self._group}") from error


def _at(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition or 0)


def _cooperative(tuning: Mapping[str, str]) -> bool:
    """Whether members keep what they read while they share out anew; the client is to be told of changes only, then."""
    strategy = tuning.get("partition.assignment.strategy", "")
    return strategy.startswith("cooperative") or tuning.get("group.protocol", "").lower() == "consumer"


def _positions(offsets: Mapping[TopicPartition, int]) -> list[Any]:
    from confluent_kafka import TopicPartition as Position

    return [Position(at.topic, at.partition, offset) for at, offset in offsets.items()]
