"""Topics of Kafka, with the offsets in the same transactions as the records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.kafka import offset_store
from headrace.connectors.kafka.offset_store import TOPIC_SECONDS
from headrace.connectors.kafka.produce import TopicTarget, check_rows, enqueue
from headrace.connectors.kafka.records import RecordMapping, place_of
from headrace.connectors.kafka.target_topics import AllowedTopics, NewTopics, Topics, unknown
from headrace.connectors.kafka.task import Fenced, PartitionWrite, TransactionalProduceTask
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.core import topic_check
from headrace.core.dead_letters import RejectedRow
from headrace.core.error_markers import is_raised_on_worker
from headrace.core.format import Format
from headrace.core.sink import RowRejectingSink, TransactionalSink
from headrace.errors import ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.formats.avro.encode_errors import translate_encode_errors
from headrace.formats.json import Json
from headrace.kafka import commit_metadata
from headrace.kafka.offset_group import FencedOffsetGroup, connection
from headrace.kafka.placeholder_topics import PlaceholderTopics
from headrace.spark import task_alignment, tasks
from headrace.spark.origin_columns import PLACE
from headrace.support.crashpoints import reach
from headrace.support.polling import wait_until
from headrace.support.redaction import secrets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.core.dead_letters import DeadLetterBatch
    from headrace.core.state import RunLease, State
    from headrace.kafka.commit_metadata import CommittedOffset
    from headrace.kafka.offset_group import Topic
    from headrace.types import Batch, Progress, Range, TopicPartition

_LONGEST_MS = 300_000
"""How long a transaction may be open, unless told or the broker allows less."""
_BATCH_BYTES = 1_000_000
_NOT_OF_TOPICS = re.compile(r"[^a-zA-Z0-9._-]")
_SHORT_MS = 60_000
"""The same where the broker does not tell."""
_OWN = {
    "bootstrap.servers": "the first argument",
    "transactional.id": "derived from the pipeline's name: it keeps an earlier run out",
    "enable.idempotence": "always on",
    "group.id": "group=",
}
_DEFAULTS = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # that of the Java client, so that a key goes where its producers send it
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
    "batch.size": 100_000,  # where topics are named by rows: what is sent at once must fit each of them
    "message.max.bytes": 1_000_000_000,  # each topic has a limit of its own, which is looked at before
}


class Kafka(offset_store.Kafka, RowRejectingSink, TransactionalSink):
    """Produces each row to `topic`, or to the one that `topic_column` names, encoded by `format`.

    Records and offsets move in one transaction. Where each task has the rows of one partition, it commits them by
    itself with that partition's offset, under a transactional id of that partition. Otherwise, and where the batch is
    held, the driver commits them all in one. Readers must ask for `isolation.level=read_committed`, as clients of ours
    do by themselves.

    The offsets are those of a consumer group of the target cluster, the pipeline's name unless `group` is given. If the
    source is another cluster, an empty topic of the target stands in for each of its topics.

    `key`, `partition`, `timestamp` and `headers` name columns, or fields of them (`_kafka.key`); `exclude` names
    columns that are left out of the value. `create` makes topics that are not there: True, or
    `{"partitions": 6, "replication": 3}` and settings of a topic. `options` are those of librdkafka.

    With `topic_column`, rows may name the topics in `topics`, or those that match `pattern`, and never one that the
    pipeline reads or has its dead letters in. Where a pattern is given, `create` makes topics until `max_topics` match.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str | None = None,
        *,
        topic_column: str | None = None,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        max_topics: int = 100,
        key: str | None = None,
        headers: str | Mapping[str, str] | None = None,
        partition: str | None = None,
        timestamp: str | None = None,
        exclude: Sequence[str] = (),
        format: Format | None = None,  # noqa: A002
        create: bool | Mapping[str, Any] = False,
        group: str | None = None,
        options: Mapping[str, Any] | str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(bootstrap, group=group, options=options)
        if (topic is None) == (topic_column is None):
            raise ConfigError(
                "one topic, or a column that names it: one of both", hint='topic="clean", or topic_column="kind"'
            )
        if format is not None and not isinstance(format, Format):
            raise ConfigError(f"format={format!r} is not a format", hint="format=hr.Json()")
        for option in self._options:
            if option in _OWN:
                raise ConfigError(f"the option {option} is set by Headrace: {_OWN[option]}")
        if headers is not None and not isinstance(headers, str | Mapping):
            raise ConfigError(f"headers={headers!r}", hint='headers={"name": "column"}, or headers="_kafka.headers"')
        if isinstance(exclude, str):
            raise ConfigError(f"exclude={exclude!r}: expected a list of columns", hint=f"exclude=[{exclude!r}]")
        self._allowed = AllowedTopics.of(topic_column, topics, pattern, max_topics)
        self._layout = RecordMapping(
            format or Json(), topic, topic_column, key, partition, headers, timestamp, tuple(exclude)
        )
        self._new = NewTopics.of(create)
        self._topics: Topics | None = None
        self._target: TopicTarget | None = None
        self._own: RunLease | None = None
        self._unsure = False
        self._names = PlaceholderTopics("")
        self._home: set[str] = set()
        """Topics of this cluster: one that is recreated has another id, and is of this cluster still."""

    @property
    def identity(self) -> str:
        where = (
            f"topic_column={self._layout.topic_column!r}" if self._layout.topic is None else repr(self._layout.topic)
        )
        return f"sinks.Kafka({self._bootstrap!r}, {where})"

    def secrets(self) -> frozenset[str]:
        return secrets_of(self._options)

    def writes_to_source_topic(self, bootstrap: str, reads: Callable[[str], bool]) -> str | None:
        here, there = ({one.strip() for one in text.split(",")} for text in (self._bootstrap, bootstrap))
        return self._loops(reads) if here & there else None

    def writes_to_source_cluster(self, cluster: Callable[[], str], reads: Callable[[str], bool]) -> str | None:
        return self._loops(reads) if self._cluster() == cluster() else None

    def _cluster(self) -> str:
        group = self._made_group("")
        try:
            return group.cluster_id()
        finally:
            group.close()

    def _loops(self, reads: Callable[[str], bool]) -> str | None:
        if self._allowed is None:
            topic = self._layout.topic
            return topic if topic is not None and reads(topic) else None
        # Which topics a pattern allows, only the rows say.
        self._allowed = replace(self._allowed, reads=(*self._allowed.reads, reads))
        return next((topic for topic in sorted(self._allowed.names or ()) if reads(topic)), None)

    def open(self, pipeline: str) -> Self:
        super().open(pipeline)
        self._topics = Topics(self._bootstrap, self._connecting(), self._new, self._allowed)
        self._target, self._own = None, None
        self._prepared_schema = None
        self._opened.producing = self._producing(self._timeout())
        return self

    def prepare(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        empty = SparkSession.getActiveSession()
        if empty is not None:
            self._layout.check(empty.createDataFrame([], schema))
        self._prepared()

    def check_reachable(self) -> None:
        topic = self._layout.topic
        if topic is None or self._new is not None:
            return
        there = Topics(self._bootstrap, self._connecting(), None)
        if there.rules(topic) is None:
            raise self._absent(topic, there.nearest(topic))

    def check_target(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            self._layout.check(active.createDataFrame([], schema), dry=True)
        self.check_reachable()

    def _absent(self, topic: str, near: str | None = None) -> ConfigError:
        create = 'create=True makes it, or create={"partitions": 6}'
        return ConfigError(unknown(topic, self._bootstrap), hint=f"{near} Else {create}" if near else create)

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str:
        if not cached and task_alignment.plan_is_narrow(rows):
            return "each task produces its partition's rows and moves its offset in one transaction"
        reason = "the batch is cached" if cached else "the plan moves rows between tasks"
        return f"the driver produces the batch and moves the offsets in one transaction ({reason})"

    def set_lease(self, run: RunLease | None, check: Callable[[RunLease | None], None] = lambda held: None) -> None:
        if run is None and self._unsure:
            return  # tasks may be at work still: who starts next must see that
        with self._lock:
            if self._own is not None:
                self._current()
            super().set_lease(run, check)
            self._own = run

    def load(self) -> Progress:
        """Also ends open transactions of tasks of an earlier run, or of a batch that failed."""
        with self._lock:
            self._claimed()
            state, version = self.read()
            if self._unsure or state.run is not None:
                self._opened.fence_task_producers(
                    version.entries, partial(commit_metadata.reissue, version.entries, self._opened_at)
                )
                self._unsure, self._own = False, None
                state, _ = self.read()
            return state.progress

    def write(self, batch: Batch, rows: DataFrame) -> None:
        target = self._prepared()
        if task_alignment.tasks_match_ranges(rows, len(batch.ranges)):
            with self._lock:
                state, entries = self._current()
                new = state.committed(batch)
                writes = commit_metadata.metadata_updates(entries, new, apart=True)
                self._refuse_unknown(writes.keys() - entries.keys(), new.progress.topic_ids)
            if writes.keys() == {r.at for r in batch.ranges}:
                # Which partition a row comes from, its task knows by itself.
                parts = tuple(self._part(r, entries, writes) for r in batch.ranges)
                self._write_partitions(batch, self._layout.frame(rows, PLACE[2:]), target, parts)
                self._remembered.remember(new.progress)
                return
        self._write_batch(batch, self._layout.frame(rows), target, None)

    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        self._write_batch(batch, self._layout.frame(rows), self._prepared(), dead_letters)

    def _part(
        self,
        r: Range,
        entries: Mapping[TopicPartition, CommittedOffset],
        writes: Mapping[TopicPartition, CommittedOffset],
    ) -> PartitionWrite:
        return PartitionWrite(r, self._names.here(r.at.topic), entries.get(r.at), writes[r.at], self._writer(r.at))

    def _write_partitions(
        self, batch: Batch, frame: DataFrame, target: TopicTarget, parts: tuple[PartitionWrite, ...]
    ) -> None:
        """Per task, in its own transaction, records and offset."""
        try:
            with translate_encode_errors(repr(self)):
                work = TransactionalProduceTask(target, self._opened.name, parts, topic_check.current())
                tasks.run(frame, work, verify_pieces=False)
        except BaseException as error:
            self._unsure = True  # others of the tasks may be at work still
            if is_raised_on_worker(error, Fenced):
                raise self._fenced(batch) from error
            raise
        self._known |= {r.at for r in batch.ranges}
        reach("kafka: partitions written")

    def _write_batch(
        self, batch: Batch, frame: DataFrame, target: TopicTarget, dead_letters: DeadLetterBatch | None
    ) -> None:
        """1. read the rows; 2. set apart those that a topic does not take; 3. commit records and offsets."""
        with translate_encode_errors(repr(self)):
            records = frame.toArrow().combine_chunks()
        topic_check.verify()
        reach("kafka: rows read")
        good: list[tuple[str, Any]] = []
        for piece in records.to_batches():
            for topic, some, wrong in check_rows(target, piece):
                good.append((topic, _without(some, self._set_apart(some, wrong, dead_letters))))
        if dead_letters is not None:
            dead_letters.flush()
        with self._lock:
            self._opened.claim()
            state, entries = self._current()
            new = state.committed(batch)

            def produce(producer: Any) -> None:
                for topic, some in good:
                    enqueue(producer, target, topic, some)
                target.flush(producer)
                reach("kafka: records produced")

            writes = commit_metadata.metadata_updates(entries, new)
            self._refuse_unknown(writes.keys() - entries.keys(), new.progress.topic_ids)
            if not self._opened.commit(writes, produce):
                raise self._fenced(batch)
            self._known |= writes.keys()
            self._remembered.remember(new.progress)
        reach("kafka: committed")

    def _set_apart(self, some: Any, wrong: list[tuple[int, str]], dead_letters: DeadLetterBatch | None) -> list[int]:
        """The numbers of the rows that are set apart; BadRecord if they cannot be."""
        refusals = RejectedRows(repr(self), None if dead_letters is None else dead_letters.limit)
        for row, why in wrong:
            refusals.add(place_of(some, row), why)
        if dead_letters is not None:
            dead_letters.reject([RejectedRow(origin, why, self.identity) for origin, why in refusals.found])
        return [row for row, _ in wrong]

    def _current(self) -> tuple[State, dict[TopicPartition, CommittedOffset]]:
        known = self._known
        entries = self._fetch()
        state = self._state(entries)
        if self._own is not None and not self._own.is_same_run(state.run):
            if state.run is None and (gone := known - entries.keys()):
                # A topic that is deleted takes its offsets along, and the sign of the run with them.
                topic_check.verify()
                raise RetriableError(f"{self!r}: the offset of {min(gone)} is gone: its topic was deleted")
            raise self._taken_over()
        return state, entries

    def _fenced(self, batch: Batch) -> HeadraceError:
        """What it means that a newer producer is there: another run, which is a conflict; or another attempt of a
        task, a transaction that lasted too long, or one that was aborted by hand, which costs a repeat."""
        self._unsure = True
        with self._lock:
            try:
                state, _ = self._current()
                state.committed(batch)
            except OffsetConflict as error:
                return error
        return RetriableError(
            f"{self!r}: the transaction was ended by somebody else",
            hint='if it took too long: options={"transaction.timeout.ms": "…"}, or smaller batches',
        )

    def _taken_over(self) -> OffsetConflict:
        return OffsetConflict(f"{self!r}: another run of this pipeline has taken over", hint="let one of them finish")

    def _prepared(self) -> TopicTarget:
        assert self._topics is not None
        if self._target is None:
            self._target = self._made_target()
        topic = self._target.topic
        if topic is not None and (rules := self._topics.rules(topic)) is not None:
            self._target = replace(self._target, rules=rules)  # partitions may have been added
        return self._target

    def _made_target(self) -> TopicTarget:
        assert self._topics is not None
        topic = self._layout.topic
        rules = None if topic is None else self._topics.rules(topic)
        if topic is not None and rules is None:
            raise self._absent(topic)
        if rules is not None and "batch.size" not in self._options:
            # What is sent at once must fit the topic, too: a batch that does not is refused whole.
            self._opened.producing = {**self._opened.producing, "batch.size": min(_BATCH_BYTES, rules.most_bytes)}
            self._opened.release()  # what it claimed with was made before this was known
        producing = {**self._connecting(), **self._opened.producing}
        connecting = self._connecting()
        return TopicTarget(repr(self), self._bootstrap, connecting, producing, topic, rules, self._new, self._allowed)

    def _made_group(self, name: str) -> FencedOffsetGroup:
        self._names = PlaceholderTopics(self._prefix(name))
        return FencedOffsetGroup(self._bootstrap, self._options, name, names=self._names, writers=self._writer)

    @staticmethod
    def _prefix(group: str) -> str:
        """Of what stands in for topics. Told apart by more than a dot, for groups and topics may have dots."""
        mark = hashlib.sha256(group.encode()).hexdigest()[:8]
        return f"headrace.{_NOT_OF_TOPICS.sub('_', group)[:80]}-{mark}."

    def _writer(self, at: TopicPartition) -> str:
        # No topic has a slash in its name.
        return f"headrace/{self._opened.name}/{at.topic}/{at.partition}"

    def _refuse_unknown(self, partitions: set[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        """Have an empty topic stand in for each one that is elsewhere."""
        assert self._topics is not None
        for topic in {at.topic for at in partitions}:
            needed = 1 + max(at.partition for at in partitions if at.topic == topic)
            there = self._look_for(topic)
            if topic not in self._home and (there is None or there.id not in (None, topic_ids.get(topic, there.id))):
                self._topics.create(self._names.add(topic), NewTopics(partitions=needed))
            elif there is not None and there.id is None and len(there.partitions) < needed:
                self._topics.grow(self._names.here(topic), needed)
        super()._refuse_unknown(partitions, topic_ids)

    def _fetch(self) -> dict[TopicPartition, CommittedOffset]:
        entries = super()._fetch()
        self._home |= {at.topic for at in entries if self._names.here(at.topic) == at.topic}
        return entries

    def _look_for(self, topic: str) -> Topic | None:
        """The topic here, or what stands in for it; one that was just made may take a moment to be seen."""
        return wait_until(lambda: self._opened.topics([topic]).get(topic), TOPIC_SECONDS)

    def _connecting(self) -> dict[str, Any]:
        return {**connection(self._bootstrap, self._options), "log_level": 0}

    def _producing(self, timeout: int) -> dict[str, Any]:
        return {**_DEFAULTS, "transaction.timeout.ms": timeout, **self._options}

    def _timeout(self) -> int:
        """How long a transaction may be open, in milliseconds; ConfigError if the broker does not allow as much."""
        asked = self._options.get("transaction.timeout.ms")
        if asked is not None and not asked.isdecimal():
            raise ConfigError(f"transaction.timeout.ms={asked!r} is not a number of milliseconds")
        try:
            most = self._opened.broker_setting("transaction.max.timeout.ms")
        except ConfigError:  # this user may not look at the broker's settings
            return int(asked or _SHORT_MS)
        if asked is not None and int(asked) > most:
            raise ConfigError(
                f"transaction.timeout.ms={asked} is more than Kafka at {self._bootstrap} allows: {most}",
                hint=f'options={{"transaction.timeout.ms": "{most}"}}, or raise transaction.max.timeout.ms there',
            )
        return int(asked or min(_LONGEST_MS, most))


def _without(records: Any, rows: list[int]) -> Any:
    import pyarrow as pa

    wrong = set(rows)
    return records.filter(pa.array([row not in wrong for row in range(len(records))])) if wrong else records
