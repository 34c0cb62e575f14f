"""What a pipeline will do and why its guarantee holds, without changing anything anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.delivery import Guarantee
from headrace.errors import HeadraceError
from headrace.expectations import Gate
from headrace.kafka import settings
from headrace.kafka.cluster import Cluster
from headrace.kafka.source import ROWS
from headrace.launch import check_transform
from headrace.sinks.base import IdempotentSink, TransactionalSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from headrace.kafka.source import Kafka
    from headrace.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Report:
    pipeline: str
    guarantee: str
    reason: str
    steps: tuple[str, ...]
    source: str
    sink: str
    offsets: str
    columns: tuple[str, ...]
    notes: tuple[str, ...]


def check(pipeline: Pipeline, options: Mapping[str, str]) -> Report:
    """Raises ConfigError for a schema or transform that cannot work; everything else was checked at build."""
    from headrace.spark import session
    from headrace.spark.inputs import Inputs

    spark = session.create({**pipeline.sink.spark_options, **options})
    result = check_transform(pipeline, Inputs.of(spark, pipeline))
    return Report(
        pipeline=pipeline.name,
        guarantee=pipeline.guaranteed,
        reason=_reason(pipeline, result),
        steps=tuple(pipeline.steps),
        source="; ".join(
            str(source) if name == ROWS else f"{name}: {source}" for name, source in pipeline.sources.items()
        ),
        sink=repr(pipeline.sink),
        offsets="in the sink" if isinstance(pipeline.sink, TransactionalSink) else repr(pipeline.store),
        columns=tuple(f"{f.name} {f.dataType.simpleString()}" for f in result.schema) if result is not None else (),
        notes=(
            *([] if result is not None else ["the transform raised on an empty frame: its columns are unknown"]),
            *(note for source in pipeline.sources.values() for note in (*_skips(source), *_settings(source))),
            *_advice(pipeline),
        ),
    )


def _skips(source: Kafka) -> list[str]:
    """What the guarantee does not speak of: records that are not read at all, or read by another run again."""
    notes = []
    if not source.resume:
        notes.append(f"resume=False: every run starts at {source.start}, whatever the runs before have read or left")
    if source.max_lag is not None:
        notes.append(f"max_lag={source.max_lag}: what lags more is never read; headrace offsets history has it")
    return notes


def _settings(source: Kafka) -> list[str]:
    notes = settings.notes(source)
    try:
        return notes + settings.asked(Cluster.of(source), source)
    except HeadraceError as error:
        return [*notes, f"the cluster could not be asked: {error.message}"]


def _advice(pipeline: Pipeline) -> list[str]:
    try:
        return pipeline.store.advice(pipeline.name)
    except HeadraceError as error:
        return [f"the store could not be asked: {error.message}"]


def _reason(pipeline: Pipeline, rows: DataFrame | None) -> str:
    way = None
    if rows is not None:
        held = pipeline.quarantine is not None or isinstance(pipeline.transform, Gate)
        way = pipeline.sink.how(rows, held=held)
    return _why(pipeline) + (f": {way}" if way else "")


def _why(pipeline: Pipeline) -> str:
    if isinstance(pipeline.sink, TransactionalSink):
        if pipeline.guaranteed is Guarantee.EXACTLY_ONCE:
            return "rows and offsets move in one transaction of the sink"
        return "stronger than asked: rows and offsets move in one transaction of the sink, which is exactly-once"
    match pipeline.guaranteed:
        case Guarantee.AT_MOST_ONCE:
            return "offsets move before the rows are written, and no write is ever repeated"
        case Guarantee.AT_LEAST_ONCE:
            if isinstance(pipeline.sink, IdempotentSink):
                return "stronger than asked: a repeated batch leaves the sink unchanged, which is exactly-once"
            return "the ranges are journalled before the write, and offsets move after it; a crash repeats the batch"
        case Guarantee.EXACTLY_ONCE:
            return "the exact ranges are journalled before the write, and a repeated batch leaves the sink unchanged"
