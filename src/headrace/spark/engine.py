"""The direct engine: a planned batch becomes the transformed rows of its ranges, and these go to the sink."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.errors import AnalysisException

from headrace.delivery import Written
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.expectations import Gate
from headrace.kafka import security
from headrace.kafka.letters import LetterTopic
from headrace.letters import Quarantine
from headrace.sinks.base import QuarantiningSink
from headrace.sinks.fanout import Fanout
from headrace.spark import gate, plan, session
from headrace.spark.inputs import Inputs, Raw
from headrace.spark.originals import originals
from headrace.spark.refused import refused
from headrace.tracebacks import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.letters import DeadLetters, Letter
    from headrace.pipeline import Pipeline
    from headrace.types import Batch


class DirectEngine:
    """Made once per run; raises ConfigError for a schema or a transform that cannot work.

    `schema` is that of the transformed rows, where it is known before the first batch.
    """

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, inputs: Inputs | None = None, schema: StructType | None = None
    ) -> None:
        self._spark = spark
        self._sink = pipeline.sink
        self._transform = pipeline.transform
        self._dead_letters = pipeline.quarantine
        self._schema = schema
        self._inputs = inputs or Inputs.of(spark, pipeline)
        self._weigh = pipeline.limits.max_bytes is not None
        source = next(iter(pipeline.sources.values()))
        topic = self._dead_letters.topic if self._dead_letters else None
        self._letters = LetterTopic(source.bootstrap, source.options, topic) if topic else None
        self._seen = False
        self._batch: Batch | None = None
        """The one in hand, or the last."""

    def prepare(self) -> None:
        if self._schema is not None:
            self._sink.prepare(self._schema)

    def write(self, batch: Batch) -> Written:
        self._batch = batch
        raw = Raw(self._inputs, batch, weigh=self._weigh)
        with ExitStack() as holding:
            if self._dead_letters is None:
                decoded = {name: one.decoder.decode(raw.frames[name]) for name, one in self._inputs.each.items()}
                frames = {name: found.rows for name, found in decoded.items()}
                self._sink.write(batch, self._transformed(batch, frames, holding))
                return Written(dropped=sum(found.dropped() for found in decoded.values()), bytes_each=raw.bytes_each())
            # Good and bad records are read one after the other, and Kafka only once.
            most = self._dead_letters.most(batch)
            letters: list[Letter] = []
            frames = {}
            for name, one in self._inputs.each.items():
                apart = one.decoder.judged(raw.frames[name])
                holding.enter_context(_held(apart.frame))
                letters += apart.letters(most)
                frames[name] = apart.good
            quarantine = self._quarantine(batch, self._dead_letters, letters)
            rows = self._transformed(batch, frames, holding)
            if isinstance(self._sink, QuarantiningSink):
                self._sink.write_apart(batch, rows, quarantine)
            else:
                quarantine.settled()
                self._sink.write(batch, rows)
            return Written(quarantined=quarantine.count, bytes_each=raw.bytes_each())

    def translated(self, error: Exception) -> Exception:
        found: HeadraceError | None = refused(error)
        if found is None and self._batch is not None:
            try:
                found = self._inputs.blamed(self._batch, error)
            except Exception as failure:  # what stands in the way of looking comes first
                error = failure
        if found is not None:
            return found
        try:
            if self._batch is not None and (news := self._inputs.learnt(self._batch, error)):
                return RetriableError(news)
        except HeadraceError as failure:
            return failure
        if isinstance(error, AnalysisException):
            return ConfigError(f"Spark refuses the rows: {short(error)}", hint="change the transform")
        if not session.alive(self._spark):
            return HeadraceError(
                "the Spark process has gone; nothing is lost, the batch in hand is repeated at the next start",
                hint="start the pipeline again; for memory: --spark spark.driver.memory=4g",
            )
        return self._discreet(error)

    def _discreet(self, error: Exception) -> Exception:
        """Without the passwords that Spark or a client of its may have put into it."""
        given = [one.source.options for one in self._inputs.each.values()]
        secrets = {value for options in given for name, value in options.items() if security.secret(name) and value}
        if not any(value in str(error) for value in secrets):
            return error
        text = short(error)
        for value in sorted(secrets, key=len, reverse=True):
            text = text.replace(value, "***")
        return RetriableError(text)

    def _transformed(self, batch: Batch, decoded: Mapping[str, DataFrame], holding: ExitStack) -> DataFrame:
        rows = plan.apply(self._transform, self._inputs.given(decoded))
        if not self._seen:
            # A transform that raised on the empty frame has not been looked at yet.
            plan.refuse_state(rows)
            self._seen = True
        if isinstance(self._transform, Gate) or isinstance(self._sink, Fanout):
            holding.enter_context(_held(rows))
        if isinstance(self._transform, Gate):
            gate.check(batch, rows, self._transform.conditions)
        return rows

    def _quarantine(self, batch: Batch, wanted: DeadLetters, letters: list[Letter]) -> Quarantine:
        return Quarantine(
            letters,
            most=wanted.most(batch),
            originals=lambda refused: [
                letter for frame in Raw(self._inputs, batch).frames.values() for letter in originals(frame, refused)
            ],
            table=wanted.table,
            send=self._letters.send if self._letters else None,
        )


@contextmanager
def _held(rows: DataFrame) -> Iterator[None]:
    """Kept by Spark, in memory as far as there is some, while it is read more than once."""
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        rows.unpersist()
