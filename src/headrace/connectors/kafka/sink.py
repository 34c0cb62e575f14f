"""The Kafka sink: commits records and offsets in the same transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.kafka.produce import TopicTarget, check_rows, enqueue
from headrace.connectors.kafka.records import RecordMapping, origin_of
from headrace.connectors.kafka.sink_offsets import SinkOffsets
from headrace.connectors.kafka.target_topics import AllowedTopics, NewTopics, TargetTopics, missing_topic
from headrace.connectors.kafka.task import TransactionalProduceTask
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.core import topic_check
from headrace.core.dead_letters import RejectedRow
from headrace.core.format import Format
from headrace.core.sink import RowRejectingSink, TransactionalSink
from headrace.errors import ConfigError
from headrace.formats.avro.encode_errors import translate_encode_errors
from headrace.formats.json import Json
from headrace.spark import task_alignment, tasks
from headrace.spark.origin_columns import ORIGIN_COLUMNS
from headrace.support.crashpoints import reach
from headrace.support.redaction import secrets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.connectors.kafka.sink_offsets import PlannedCommit
    from headrace.core.dead_letters import DeadLetterBatch
    from headrace.types import Batch

_BATCH_BYTES = 1_000_000
_OWN = {
    "bootstrap.servers": "the first argument",
    "transactional.id": "derived from the pipeline's name: it fences earlier runs",
    "enable.idempotence": "always on",
    "group.id": "group=",
}


class Kafka(RowRejectingSink, TransactionalSink):
    """Produces each row, encoded by `format`, to `topic` or to the topic named in its `topic_column`.

    Records and offsets are committed in one transaction. If each task has the rows of one partition, the task commits
    them with the offset of that partition, under a transactional id of that partition. Otherwise, and if the batch is
    cached, the driver commits the whole batch in one transaction. Readers must set `isolation.level=read_committed`, as
    Headrace's own readers do.

    The offsets belong to a consumer group of the target cluster, by default named like the pipeline; `group` names
    another one. If the source is another cluster, the target has an empty placeholder for each source topic.

    `key`, `partition`, `timestamp` and `headers` name columns or fields of columns (`_kafka.key`); `exclude` names
    columns that are not part of the value. `create` creates missing topics: True, or
    `{"partitions": 6, "replication": 3}` with settings of the topic. `options` are options of librdkafka.

    With `topic_column`, rows may name the topics in `topics`, or those that match `pattern`, but never a topic that the
    pipeline reads or its dead-letter topic. With a pattern, `create` creates topics until `max_topics` match.
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
        self._offsets = SinkOffsets(bootstrap, group=group, options=options)
        if (topic is None) == (topic_column is None):
            raise ConfigError(
                "expected topic or topic_column=, one of both", hint='topic="clean", or topic_column="kind"'
            )
        if format is not None and not isinstance(format, Format):
            raise ConfigError(f"format={format!r} is not a format", hint="format=hr.Json()")
        for option in self._offsets.options:
            if option in _OWN:
                raise ConfigError(f"the option {option} is set by Headrace: {_OWN[option]}")
        if headers is not None and not isinstance(headers, str | Mapping):
            raise ConfigError(f"headers={headers!r}", hint='headers={"name": "column"}, or headers="_kafka.headers"')
        if isinstance(exclude, str):
            raise ConfigError(f"exclude={exclude!r}: expected a list of columns", hint=f"exclude=[{exclude!r}]")
        self._allowed = AllowedTopics.of(topic_column, topics, pattern, max_topics)
        self._mapping = RecordMapping(
            format or Json(), topic, topic_column, key, partition, headers, timestamp, tuple(exclude)
        )
        self._new = NewTopics.of(create)
        self._topics: TargetTopics | None = None
        self._target: TopicTarget | None = None

    @property
    def offsets(self) -> SinkOffsets:
        return self._offsets

    @property
    def identity(self) -> str:
        where = (
            f"topic_column={self._mapping.topic_column!r}" if self._mapping.topic is None else repr(self._mapping.topic)
        )
        return f"sinks.Kafka({self._offsets.bootstrap!r}, {where})"

    @property
    def replaces_rows(self) -> bool:
        return self._mapping.key is not None  # readers of the topic take the newest record of a key

    def secrets(self) -> frozenset[str]:
        return secrets_of(self._offsets.options)

    def writes_to_source_topic(self, bootstrap: str, reads: Callable[[str], bool]) -> str | None:
        target, source = (
            {address.strip() for address in text.split(",")} for text in (self._offsets.bootstrap, bootstrap)
        )
        return self._source_topic_written(reads) if target & source else None

    def writes_to_source_cluster(self, cluster: Callable[[], str], reads: Callable[[str], bool]) -> str | None:
        return self._source_topic_written(reads) if self._offsets.cluster_id() == cluster() else None

    def _source_topic_written(self, reads: Callable[[str], bool]) -> str | None:
        if self._allowed is None:
            topic = self._mapping.topic
            return topic if topic is not None and reads(topic) else None
        # With a pattern, only the rows show which topics are written: they are checked one by one.
        self._allowed = replace(self._allowed, reads=(*self._allowed.reads, reads))
        return next((topic for topic in sorted(self._allowed.names or ()) if reads(topic)), None)

    def open(self, pipeline: str) -> Self:
        super().open(pipeline)
        self._topics = TargetTopics(self._offsets.client, self._new, self._allowed)
        self._target = None
        return self

    def prepare(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            self._mapping.check(active.createDataFrame([], schema))
        self._current_target()

    def check_reachable(self) -> None:
        topic = self._mapping.topic
        if topic is None or self._new is not None:
            return
        topics = TargetTopics(self._offsets.client, None)
        if topics.limits(topic) is None:
            raise self._missing_topic(topic, topics.suggest(topic))

    def check_target(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            self._mapping.check(active.createDataFrame([], schema), dry=True)
        self.check_reachable()

    def _missing_topic(self, topic: str, near: str | None = None) -> ConfigError:
        create = 'create=True makes it, or create={"partitions": 6}'
        message = missing_topic(topic, self._offsets.bootstrap)
        return ConfigError(message, hint=f"{near} Else {create}" if near else create)

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str:
        if not cached and task_alignment.plan_is_narrow(rows):
            return "each task produces its partition's rows and moves its offset in one transaction"
        reason = "the batch is cached" if cached else "the plan moves rows between tasks"
        return f"the driver produces the batch and moves the offsets in one transaction ({reason})"

    def write(self, batch: Batch, rows: DataFrame) -> None:
        target = self._current_target()
        if task_alignment.tasks_match_ranges(rows, len(batch.ranges)):
            planned = self._offsets.plan(batch, separately=True)
            if planned.writes.keys() == {r.at for r in batch.ranges}:
                # Topic and partition of a row are known from its task.
                self._write_partitions(batch, self._mapping.encode(rows, ORIGIN_COLUMNS[2:]), target, planned)
                return
        self._write_batch(batch, self._mapping.encode(rows), target, None)

    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        self._write_batch(batch, self._mapping.encode(rows), self._current_target(), dead_letters)

    def _write_partitions(self, batch: Batch, frame: DataFrame, target: TopicTarget, planned: PlannedCommit) -> None:
        """Each task commits its records and its offset in its own transaction."""
        parts = tuple(self._offsets.partition_write(r, planned) for r in batch.ranges)
        work = TransactionalProduceTask(target, self._offsets.group, parts, topic_check.current())
        with self._offsets.committed_by_tasks(batch, planned), translate_encode_errors(repr(self)):
            tasks.run(frame, work, verify_pieces=False)

    def _write_batch(
        self, batch: Batch, frame: DataFrame, target: TopicTarget, dead_letters: DeadLetterBatch | None
    ) -> None:
        """Read the rows, reject those that violate the limits of their topic, then commit records and offsets."""
        with translate_encode_errors(repr(self)):
            records = frame.toArrow().combine_chunks()
        topic_check.verify()
        reach("kafka: rows read")
        good: list[tuple[str, Any]] = []
        for piece in records.to_batches():
            for topic, own, rejected in check_rows(target, piece):
                good.append((topic, _without(own, self._reject(own, rejected, dead_letters))))
        if dead_letters is not None:
            dead_letters.flush()

        def produce(producer: Any) -> None:
            for topic, accepted in good:
                enqueue(producer, target, topic, accepted)
            target.flush(producer)
            reach("kafka: records produced")

        self._offsets.commit_with(batch, produce)
        reach("kafka: committed")

    def _reject(self, records: Any, reasons: list[tuple[int, str]], dead_letters: DeadLetterBatch | None) -> list[int]:
        """Divert rejected rows to the dead letters and return their numbers; BadRecord without dead letters."""
        rejected = RejectedRows(repr(self), None if dead_letters is None else dead_letters.limit)
        for row, reason in reasons:
            rejected.add(origin_of(records, row), reason)
        if dead_letters is not None:
            dead_letters.reject([RejectedRow(origin, reason, self.identity) for origin, reason in rejected.rows])
        return [row for row, _ in reasons]

    def _current_target(self) -> TopicTarget:
        topics = self.require_open(self._topics)
        if self._target is None:
            self._target = self._new_target(topics)
        topic = self._target.topic
        if topic is not None and (limits := topics.limits(topic)) is not None:
            self._target = replace(self._target, limits=limits)  # partitions may have been added
        return self._target

    def _new_target(self, topics: TargetTopics) -> TopicTarget:
        topic = self._mapping.topic
        limits = None if topic is None else topics.limits(topic)
        if topic is not None and limits is None:
            raise self._missing_topic(topic)
        offsets = self._offsets
        if limits is not None and "batch.size" not in offsets.options:
            offsets.limit_batch_size(min(_BATCH_BYTES, limits.max_bytes))
        return TopicTarget(
            repr(self), offsets.client, offsets.producer_settings, topic, limits, self._new, self._allowed
        )


def _without(records: Any, rows: list[int]) -> Any:
    import pyarrow as pa

    left_out = set(rows)
    return records.filter(pa.array([row not in left_out for row in range(len(records))])) if left_out else records
