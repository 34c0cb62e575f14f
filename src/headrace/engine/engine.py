"""The direct engine: reads, decodes and transforms the ranges of a batch and writes the rows to the sink."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as sql

from headrace.core import topic_check
from headrace.core.dead_letters import DeadLetterBatch, RejectedRow
from headrace.core.delivery import Guarantee, WriteResult
from headrace.core.sink import RowRejectingSink, TransactionalSink
from headrace.engine import expectation_check, replay_check, transform_check
from headrace.engine.batch_timeout import deadline
from headrace.engine.dead_letter_records import dead_letter_records, exclude
from headrace.engine.failing_records import FailingRecords
from headrace.engine.lineage import trace
from headrace.engine.source_readers import RawBatch, SourceReaders
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka.dead_letter_topic import DeadLetterTopic
from headrace.spark import session, tasks
from headrace.spark.jvm_errors import kafka_config_error
from headrace.spark.observation import observed_metric
from headrace.spark.persistence import persisted
from headrace.support.durations import seconds
from headrace.support.redaction import secrets_of, without_secrets
from headrace.support.tracebacks import short
from headrace.types import Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.core.dead_letters import DeadLetter, DeadLetters
    from headrace.runtime.pipeline import Pipeline
    from headrace.types import Batch


class DirectEngine:
    """Executes the batches of a run. ConfigError for a schema or a transform that cannot work.

    `schema` is the schema of the transformed rows if it is known before the first batch. `patient`: an error of the
    user's code may be temporary, and ends the run only when it has occurred several times.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        inputs: SourceReaders | None = None,
        schema: StructType | None = None,
        *,
        patient: bool = True,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._sink = pipeline.sink
        self._transform = pipeline.transform
        self._dead_letters = pipeline.dead_letter_target
        self._schema = schema
        self._inputs = inputs or SourceReaders.of(spark, pipeline)
        self._timeout = seconds(pipeline.timeout)
        self._failing_records = FailingRecords(
            self._inputs, self._transform, self._dead_letters, self._limited, pipeline.expect or {}, patient=patient
        )
        self._repeats = pipeline.guaranteed is not Guarantee.AT_MOST_ONCE
        self._measure = pipeline.limits.max_bytes is not None
        source = next(iter(pipeline.sources.values()))
        topic = self._dead_letters.topic if self._dead_letters else None
        self._dead_letter_topic = DeadLetterTopic(source.bootstrap, source.options, topic) if topic else None
        self._transform_checked = False
        self._batch: Batch | None = None
        """The batch in flight, or the last one."""

    def prepare(self) -> None:
        if self._schema is not None:
            self._sink.ensure_prepared(self._schema)

    def write(self, batch: Batch) -> WriteResult:
        if batch != self._batch:
            self._inputs.start_batch()
        self._batch = batch
        with (
            self._limited(batch),
            topic_check.checking(self._inputs.topic_check(batch)),
            tasks.retries_allowed(self._repeats),
        ):
            written = self._write(batch)
            if not isinstance(self._sink, TransactionalSink):
                # This check covers sinks that do not compare topic ids: after an error here the offsets do not move.
                topic_check.verify()
            return written

    def _limited(self, batch: Batch) -> AbstractContextManager[None]:
        return deadline(self._spark, batch, self._timeout)

    def _write(self, batch: Batch) -> WriteResult:
        raw = RawBatch(self._inputs, batch, count=True, measure=self._measure)
        with ExitStack() as resources:
            if self._dead_letters is None:
                decoded = {
                    name: reader.decoder.decode(raw.frames[name]) for name, reader in self._inputs.by_name.items()
                }
                frames = {name: part.rows for name, part in decoded.items()}
                rows = self._transform_rows(batch, frames, raw, resources)
                self._sink.write(batch, rows.frame)
                return WriteResult(
                    dropped=sum(part.dropped() for part in decoded.values()),
                    bytes_each=raw.bytes_each(),
                    records=rows.records(),
                    rows=rows.stored(),
                )
            # Good and bad records are read one after the other, from a cached frame: Kafka is read once.
            limit, diverted = self._dead_letters.limit_for(batch), self._failing_records.diverted(batch)
            bad_records: list[DeadLetter] = []
            frames = {}
            for name, reader in self._inputs.by_name.items():
                validated = reader.decoder.validated(exclude(raw.frames[name], diverted))
                resources.enter_context(persisted(validated.frame))
                max_bytes = self._dead_letters.max_bytes - sum(letter.size for letter in bad_records)
                bad_records += validated.collect_dead_letters(limit, max_bytes)
                frames[name] = validated.good
            topic_check.verify()
            dead_letters = self._dead_letter_batch(batch, self._dead_letters, bad_records)
            dead_letters.reject([RejectedRow(origin, reason, "transform") for origin, reason in diverted.items()])
            before = dead_letters.count
            rows = self._transform_rows(batch, frames, raw, resources)
            if isinstance(self._sink, RowRejectingSink):
                self._sink.write_with_dead_letters(batch, rows.frame, dead_letters)
            else:
                dead_letters.flush()
                self._sink.write(batch, rows.frame)
            return WriteResult(
                quarantined=dead_letters.count,
                left_out=dead_letters.left_out,
                bytes_each=raw.bytes_each(),
                records=rows.records(),
                rows=rows.stored(rejected=dead_letters.count - before),
            )

    def translate_error(self, error: Exception) -> Exception:
        translated: HeadraceError | None = kafka_config_error(error)
        if translated is None and self._batch is not None:
            try:
                with self._limited(self._batch):
                    translated = self._inputs.locate_bad_record(self._batch, error)
            except Exception as failure:  # the error that prevents the search comes first
                error = failure
        if translated is not None:
            return translated
        try:
            if self._batch is not None and (summary := self._inputs.fetch_missing_schemas(self._batch, error)):
                return RetriableError(summary)
            if (
                self._batch is not None
                and self._repeats
                and (failing := self._failing_records.find(self._batch, error))
            ):
                return failing
        except HeadraceError as failure:
            return failure
        except Exception as failure:  # the error that prevents the search comes first
            error = failure
        if isinstance(error, AnalysisException):
            return ConfigError(f"Spark rejects the query: {short(error)}", hint="change the transform")
        if not session.alive(self._spark):
            return HeadraceError(
                "the Spark process has ended; nothing is lost, the pending batch is repeated at the next start",
                hint="start the pipeline again; for memory: --spark spark.driver.memory=4g",
            )
        return self._redact_secrets(error)

    def _redact_secrets(self, error: Exception) -> Exception:
        """The error without passwords that Spark or a client may have put into its message."""
        source_secrets = [secrets_of(reader.source.options) for reader in self._inputs.by_name.values()]
        return without_secrets(error, frozenset[str]().union(self._sink.secrets(), *source_secrets))

    def _transform_rows(
        self, batch: Batch, decoded: Mapping[str, DataFrame], raw: RawBatch, resources: ExitStack
    ) -> _TransformedRows:
        before = raw.records()
        try:
            rows = transform_check.apply(self._transform, self._inputs.transform_argument(decoded))
        except Exception as error:
            if (translated := self._failing_records.on_driver(batch, error)) is not error:
                raise translated from error
            raise
        # A transform that runs an action itself may have read only some records.
        counted = raw if raw.records() == before and self._sink.reads_all_rows else None
        if not self._transform_checked:
            # A transform that raised on the empty frame has not been checked yet.
            transform_check.reject_state(rows)
            if self._schema is None:
                replay_check.refuse_volatile_keys(self._pipeline, trace(rows))
            self._transform_checked = True
        self._sink.ensure_prepared(rows.schema)
        if self._pipeline.caches_rows:
            resources.enter_context(persisted(rows))
        if self._pipeline.expect is not None:
            expectation_check.check(batch, rows, self._pipeline.expect)
        observation = Observation()
        return _TransformedRows(rows.observe(observation, sql.expr("count(1) AS rows")), counted, observation)

    def _dead_letter_batch(self, batch: Batch, settings: DeadLetters, bad_records: list[DeadLetter]) -> DeadLetterBatch:
        def read_originals(rejected: Sequence[RejectedRow]) -> list[DeadLetter]:
            records = dead_letter_records(
                RawBatch(self._inputs, _ranges_around(batch, rejected)).frames.values(),
                rejected,
                dead_letters.remaining_bytes,
            )
            topic_check.verify()
            return records

        dead_letters = DeadLetterBatch(
            bad_records,
            limit=settings.limit_for(batch),
            max_bytes=settings.max_bytes,
            fetch_records=read_originals,
            table=settings.table,
            send=self._dead_letter_topic.send if self._dead_letter_topic else None,
        )
        return dead_letters


@dataclass(frozen=True, slots=True)
class _TransformedRows:
    """The rows for the sink, counted while it reads them; the cost is too small to measure."""

    frame: DataFrame
    _raw: RawBatch | None
    _observation: Observation

    def records(self) -> int | None:
        return self._raw.records() if self._raw else None

    def stored(self, *, rejected: int = 0) -> int | None:
        rows = observed_metric(self._observation, "rows") if self._raw else None
        return None if rows is None else rows - rejected


def _ranges_around(batch: Batch, rejected: Sequence[RejectedRow]) -> Batch:
    """The range from the first to the last rejected record of each partition; only these are read again."""
    offsets: dict[TopicPartition, list[int]] = {}
    for row in rejected:
        topic, partition, offset = row.origin
        offsets.setdefault(TopicPartition(topic, partition), []).append(offset)
    return replace(batch, ranges=tuple(Range(at, min(found), max(found) + 1) for at, found in offsets.items()))
