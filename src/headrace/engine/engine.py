"""The direct engine: a planned batch becomes the transformed rows of its ranges, and these go to the sink."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import StorageLevel
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
from headrace.engine.failing_records import Poison
from headrace.engine.lineage import trace
from headrace.engine.source_readers import RawBatch, SourceReaders
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka.dead_letter_topic import DeadLetterTopic
from headrace.spark import session, tasks
from headrace.spark.jvm_errors import kafka_config_error
from headrace.spark.observation import observe_batch
from headrace.support.durations import seconds
from headrace.support.redaction import redact, secrets_of
from headrace.support.tracebacks import short
from headrace.types import Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.core.dead_letters import DeadLetter, DeadLetters
    from headrace.runtime.pipeline import Pipeline
    from headrace.types import Batch


class DirectEngine:
    """Made once per run; raises ConfigError for a schema or a transform that cannot work.

    `schema` is that of the transformed rows, where it is known before the first batch. `patient`: an error of the
    user's code may pass, and is believed when it has come several times.
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
        self._poison = Poison(
            self._inputs, self._transform, self._dead_letters, self._limited, pipeline.expect or {}, patient=patient
        )
        self._repeats = pipeline.guaranteed is not Guarantee.AT_MOST_ONCE
        self._weigh = pipeline.limits.max_bytes is not None
        source = next(iter(pipeline.sources.values()))
        topic = self._dead_letters.topic if self._dead_letters else None
        self._letters = DeadLetterTopic(source.bootstrap, source.options, topic) if topic else None
        self._seen = False
        self._batch: Batch | None = None
        """The one in flight, or the last."""

    def prepare(self) -> None:
        if self._schema is not None:
            self._sink.ensure_prepared(self._schema)

    def write(self, batch: Batch) -> WriteResult:
        if batch != self._batch:
            self._inputs.renew()
        self._batch = batch
        with (
            self._limited(batch),
            topic_check.checking(self._inputs.topic_check(batch)),
            tasks.repeating(self._repeats),
        ):
            written = self._write(batch)
            if not isinstance(self._sink, TransactionalSink):
                # Also for sinks that know nothing of it: the offsets do not move then.
                topic_check.verify()
            return written

    def _limited(self, batch: Batch) -> AbstractContextManager[None]:
        return deadline(self._spark, batch, self._timeout)

    def _write(self, batch: Batch) -> WriteResult:
        raw = RawBatch(self._inputs, batch, count=True, weigh=self._weigh)
        with ExitStack() as holding:
            if self._dead_letters is None:
                decoded = {name: one.decoder.decode(raw.frames[name]) for name, one in self._inputs.each.items()}
                frames = {name: found.rows for name, found in decoded.items()}
                counted = self._transformed(batch, frames, raw, holding)
                self._sink.write(batch, counted.rows)
                return WriteResult(
                    dropped=sum(found.dropped() for found in decoded.values()),
                    bytes_each=raw.bytes_each(),
                    records=counted.records(),
                    rows=counted.written(),
                )
            # Good and bad records are read one after the other, and Kafka only once.
            most, diverted = self._dead_letters.limit_for(batch), self._poison.diverted(batch)
            letters: list[DeadLetter] = []
            frames = {}
            for name, one in self._inputs.each.items():
                apart = one.decoder.judged(exclude(raw.frames[name], diverted))
                holding.enter_context(_persisted(apart.frame))
                room = self._dead_letters.max_bytes - sum(letter.size for letter in letters)
                letters += apart.letters(most, room)
                frames[name] = apart.good
            topic_check.verify()
            dead_letters = self._quarantine(batch, self._dead_letters, letters)
            dead_letters.reject([RejectedRow(origin, why, "transform") for origin, why in diverted.items()])
            before = dead_letters.count
            counted = self._transformed(batch, frames, raw, holding)
            if isinstance(self._sink, RowRejectingSink):
                self._sink.write_with_dead_letters(batch, counted.rows, dead_letters)
            else:
                dead_letters.flush()
                self._sink.write(batch, counted.rows)
            return WriteResult(
                quarantined=dead_letters.count,
                left_out=dead_letters.left_out,
                bytes_each=raw.bytes_each(),
                records=counted.records(),
                rows=counted.written(refused=dead_letters.count - before),
            )

    def translated(self, error: Exception) -> Exception:
        found: HeadraceError | None = kafka_config_error(error)
        if found is None and self._batch is not None:
            try:
                with self._limited(self._batch):
                    found = self._inputs.locate_bad_record(self._batch, error)
            except Exception as failure:  # what stands in the way of looking comes first
                error = failure
        if found is not None:
            return found
        try:
            if self._batch is not None and (news := self._inputs.fetch_missing_schemas(self._batch, error)):
                return RetriableError(news)
            if self._batch is not None and self._repeats and (poison := self._poison.found(self._batch, error)):
                return poison
        except HeadraceError as failure:
            return failure
        except Exception as failure:  # what stands in the way of looking comes first
            error = failure
        if isinstance(error, AnalysisException):
            return ConfigError(f"Spark refuses the rows: {short(error)}", hint="change the transform")
        if not session.alive(self._spark):
            return HeadraceError(
                "the Spark process has gone; nothing is lost, the batch in hand is repeated at the next start",
                hint="start the pipeline again; for memory: --spark spark.driver.memory=4g",
            )
        return self._redact_secrets(error)

    def _redact_secrets(self, error: Exception) -> Exception:
        """Without the passwords that Spark or a client of its may have put into it."""
        given = [secrets_of(one.source.options) for one in self._inputs.each.values()]
        secrets = frozenset[str]().union(self._sink.secrets(), *given)
        if redact(str(error), secrets) == str(error):
            return error
        return RetriableError(redact(short(error), secrets))

    def _transformed(
        self, batch: Batch, decoded: Mapping[str, DataFrame], raw: RawBatch, holding: ExitStack
    ) -> _Counted:
        before = raw.records()
        try:
            rows = transform_check.apply(self._transform, self._inputs.given(decoded))
        except Exception as error:
            if (ours := self._poison.raised(batch, error)) is not error:
                raise ours from error
            raise
        # A transform that reads rows itself may have read only some.
        known = raw if raw.records() == before and self._sink.reads_all_rows else None
        if not self._seen:
            # A transform that raised on the empty frame has not been looked at yet.
            transform_check.refuse_state(rows)
            if self._schema is None:
                replay_check.refuse_volatile_keys(self._pipeline, trace(rows))
            self._seen = True
        self._sink.ensure_prepared(rows.schema)
        if self._pipeline.caches_rows:
            holding.enter_context(_persisted(rows))
        if self._pipeline.expect is not None:
            expectation_check.check(batch, rows, self._pipeline.expect)
        scale = Observation()
        return _Counted(rows.observe(scale, sql.expr("count(1) AS rows")), known, scale)

    def _quarantine(self, batch: Batch, wanted: DeadLetters, letters: list[DeadLetter]) -> DeadLetterBatch:
        def read_originals(refused: Sequence[RejectedRow]) -> list[DeadLetter]:
            found = dead_letter_records(
                RawBatch(self._inputs, _around(batch, refused)).frames.values(), refused, made.remaining_bytes
            )
            topic_check.verify()
            return found

        made = DeadLetterBatch(
            letters,
            limit=wanted.limit_for(batch),
            max_bytes=wanted.max_bytes,
            fetch_records=read_originals,
            table=wanted.table,
            send=self._letters.send if self._letters else None,
        )
        return made


@dataclass(frozen=True, slots=True)
class _Counted:
    """The rows for the sink, counted while it reads them, which costs nothing that can be measured."""

    rows: DataFrame
    _raw: RawBatch | None
    _scale: Observation

    def records(self) -> int | None:
        return self._raw.records() if self._raw else None

    def written(self, *, refused: int = 0) -> int | None:
        given = observe_batch(self._scale, "rows") if self._raw else None
        return None if given is None else given - refused


def _around(batch: Batch, refused: Sequence[RejectedRow]) -> Batch:
    """From the first to the last refused record of each partition: the rest need not be read again."""
    offsets: dict[TopicPartition, list[int]] = {}
    for refusal in refused:
        topic, partition, offset = refusal.origin
        offsets.setdefault(TopicPartition(topic, partition), []).append(offset)
    return replace(batch, ranges=tuple(Range(at, min(some), max(some) + 1) for at, some in offsets.items()))


@contextmanager
def _persisted(rows: DataFrame) -> Iterator[None]:
    """Kept by Spark, in memory as far as there is some, while it is read more than once."""
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        rows.unpersist()
