"""The direct engine: a planned batch becomes the transformed rows of its ranges, and these go to the sink."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.errors import AnalysisException

from headrace.delivery import Written
from headrace.errors import ConfigError, HeadraceError
from headrace.expectations import Gate
from headrace.kafka.letters import LetterTopic
from headrace.letters import Quarantine
from headrace.sinks.base import QuarantiningSink
from headrace.sinks.fanout import Fanout
from headrace.spark import gate, plan, session
from headrace.spark.direct import Reader
from headrace.spark.rows import bad_record, columns, decode, judged, originals
from headrace.tracebacks import short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.letters import DeadLetters, Letter
    from headrace.pipeline import Pipeline
    from headrace.types import Batch


class DirectEngine:
    """Made once per run; raises ConfigError for a schema or a transform that cannot work.

    `schema` is that of the transformed rows, where it is known before the first batch.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline, schema: StructType | None = None) -> None:
        self._spark = spark
        self._sink = pipeline.sink
        self._transform = pipeline.transform
        self._dead_letters = pipeline.quarantine
        self._format = pipeline.source.format
        self._schema = schema
        self._names = columns(spark, self._format)
        source = pipeline.source
        self._reader = Reader(spark, source.bootstrap, source.options, group=f"headrace-{pipeline.name}")
        topic = self._dead_letters.topic if self._dead_letters else None
        self._letters = LetterTopic(source.bootstrap, source.options, topic) if topic else None
        self._seen = False

    def prepare(self) -> None:
        if self._schema is not None:
            self._sink.prepare(self._schema)

    def write(self, batch: Batch) -> Written:
        with ExitStack() as holding:
            raw = self._reader.rows(batch.ranges)
            if self._dead_letters is None:
                decoded = decode(raw, self._format, self._names)
                self._sink.write(batch, self._transformed(batch, decoded.rows, holding))
                return Written(dropped=decoded.dropped())
            # Good and bad records are read one after the other, and Kafka only once.
            apart = judged(raw, self._format, self._names)
            holding.enter_context(_held(apart.frame))
            quarantine = self._quarantine(batch, self._dead_letters, apart.letters(self._dead_letters.most(batch)))
            rows = self._transformed(batch, apart.good, holding)
            if isinstance(self._sink, QuarantiningSink):
                self._sink.write_apart(batch, rows, quarantine)
            else:
                quarantine.settled()
                self._sink.write(batch, rows)
            return Written(quarantined=quarantine.count)

    def translated(self, error: Exception) -> Exception:
        if found := bad_record(error):
            return found
        if isinstance(error, AnalysisException):
            return ConfigError(f"Spark refuses the rows: {short(error)}", hint="change the transform")
        if not session.alive(self._spark):
            return HeadraceError(
                "the Spark process has gone; nothing is lost, the batch in hand is repeated at the next start",
                hint="start the pipeline again; for memory: --spark spark.driver.memory=4g",
            )
        return error

    def _transformed(self, batch: Batch, decoded: DataFrame, holding: ExitStack) -> DataFrame:
        rows = plan.apply(self._transform, decoded)
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
            originals=lambda refused: originals(self._reader.rows(batch.ranges), refused),
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
