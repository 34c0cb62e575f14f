"""Previews the rows that a pipeline makes of the newest records; commits and creates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.sink import without_metadata
from headrace.errors import ConfigError
from headrace.kafka.cluster import Cluster
from headrace.support.validation import check_whole_number
from headrace.types import Batch, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.source_readers import SourceReaders
    from headrace.runtime.pipeline import Pipeline

_MAX_SCHEMA_REQUESTS = 10
"""How often a registry is asked for schemas that the records refer to."""


def preview(
    pipeline: Pipeline,
    n: int = 20,
    *,
    session: SparkSession | None = None,
    spark: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> DataFrame:
    """At most `n` rows that the transform makes of the newest `n` records of each partition.

    Uses neither the stored offsets nor the sink. A bad record raises BadRecord, or is left out if the pipeline has dead
    letters. `session` and `spark` are those of `Pipeline.run`.
    """
    from headrace.engine.source_readers import SourceReaders
    from headrace.spark import session as sessions

    check_whole_number("n", n, unit="rows", hint="hr.preview(pipeline, 20)")
    batch = _newest(pipeline, n)
    active = session or sessions.create({**pipeline.sink.spark_options, **(spark or {})}, progress)
    inputs = SourceReaders.of(active, pipeline)
    for _ in range(_MAX_SCHEMA_REQUESTS):
        rows = without_metadata(_transformed(pipeline, inputs, batch)).limit(n)
        try:
            return active.createDataFrame(rows.collect(), rows.schema)
        except Exception as error:
            if (bad := inputs.locate_bad_record(batch, error)) is not None:
                raise bad from error
            if inputs.fetch_missing_schemas(batch, error) is None:
                raise
    raise ConfigError(f"the records refer to unknown schemas after {_MAX_SCHEMA_REQUESTS} requests to the registry")


def _newest(pipeline: Pipeline, n: int) -> Batch:
    logs = {}
    for source in pipeline.sources.values():
        logs.update(Cluster.of(source).led_logs(source.subscription))
    ranges = tuple(
        Range(at, max(log.beginnings[at], end - n), end) for log in logs.values() for at, end in log.ends.items()
    )
    return Batch(1, tuple(r for r in ranges if len(r)), {topic: log.topic_id for topic, log in logs.items()})


def _transformed(pipeline: Pipeline, inputs: SourceReaders, batch: Batch) -> DataFrame:
    from headrace.engine import transform_check
    from headrace.engine.source_readers import RawBatch

    raw = RawBatch(inputs, batch).frames
    if pipeline.dead_letter_target is not None:
        frames = {name: reader.decoder.validated(raw[name]).good for name, reader in inputs.by_name.items()}
    else:
        frames = {name: reader.decoder.decode(raw[name]).rows for name, reader in inputs.by_name.items()}
    return transform_check.apply(pipeline.transform, inputs.transform_argument(frames))
