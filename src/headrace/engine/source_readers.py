"""The sources of a pipeline: reads and decodes the records of a batch, per source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from headrace.core.error_markers import is_bad_record_error, unknown_schema
from headrace.core.transforms import Frames
from headrace.engine.decoder import Decoder
from headrace.engine.locality import LocalityHints
from headrace.engine.range_reader import RangeReader
from headrace.kafka.cluster import Cluster
from headrace.kafka.planned_topics import PlannedTopics, TopicCheck
from headrace.kafka.source_set import source_for_topic, sources_by_name
from headrace.spark.observation import observed_metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace.errors import BadRecord
    from headrace.kafka.source import Kafka
    from headrace.runtime.pipeline import Pipeline
    from headrace.types import Batch, Range, TopicPartition

_COUNT = "count(1) AS records"
_BYTES = "sum(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)) AS bytes"


class SourceReader:
    """Reads one source. `whole_partitions`: one task per partition, with its records in the order of the log."""

    def __init__(self, spark: SparkSession, source: Kafka, group: str, *, whole_partitions: bool) -> None:
        self.source = source
        names = source.subscription.names or ()
        self.decoder = Decoder(spark, source.format, source.key_format, names, source.cluster_topic_name)
        hints = LocalityHints(spark, source, self._leaders)
        self._reader = RangeReader(spark, source.bootstrap, source.options, group, prefix=source.prefix, locality=hints)
        self._whole_partitions = whole_partitions or not source.split

    def _leaders(self, topics: Iterable[str]) -> dict[TopicPartition, str]:
        return self.cluster.leaders(topics)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.of(self.source)

    def close(self) -> None:
        if "cluster" in vars(self):
            self.cluster.close()

    def raw(self, ranges: Sequence[Range], ids: Mapping[str, str]) -> DataFrame:
        """The undecoded records of `ranges`; `ids` are the ids of their topics."""
        return (
            self._reader.rows(ranges, ids)
            if self._whole_partitions
            else self._reader.rows_split_across_cores(ranges, ids)
        )


class SourceReaders:
    """The readers of all sources, by name. Created once per run; calls schema registries."""

    def __init__(
        self, spark: SparkSession, source: Kafka | Mapping[str, Kafka], group: str, *, whole_partitions: bool
    ) -> None:
        self._sources = sources_by_name(source)
        self.by_name = {
            name: SourceReader(spark, kafka, group, whole_partitions=whole_partitions)
            for name, kafka in self._sources.items()
        }
        self._single = not isinstance(source, Mapping)
        self._source_names: dict[str, str] = {}

    @classmethod
    def of(cls, spark: SparkSession, pipeline: Pipeline) -> Self:
        return cls(
            spark,
            pipeline.source,
            f"headrace-{pipeline.name}",
            whole_partitions=pipeline.sink.needs_one_task_per_partition,
        )

    def close(self) -> None:
        """Close the connections to the clusters."""
        for reader in self.by_name.values():
            reader.close()

    def start_batch(self) -> None:
        """Called when a new batch begins."""
        for reader in self.by_name.values():
            reader.decoder.start_batch()

    def ranges(self, batch: Batch) -> dict[str, list[Range]]:
        """The ranges of each source."""
        by_source: dict[str, list[Range]] = {name: [] for name in self.by_name}
        for r in batch.ranges:
            by_source[self._source_name(r.at.topic)].append(r)
        return by_source

    def topic_check(self, batch: Batch) -> TopicCheck:
        """A check that compares the current topic ids with those of the batch."""
        ids: dict[str, dict[str, str]] = {}
        for topic, known in batch.topic_ids.items():
            ids.setdefault(self._source_name(topic), {})[topic] = known
        planned = {
            name: PlannedTopics(source.bootstrap, dict(source.options), source.prefix, ids[name])
            for name, source in self._sources.items()
            if name in ids
        }
        return TopicCheck(list(planned.values()), [self.by_name[name].cluster for name in planned])

    def _source_name(self, topic: str) -> str:
        if topic not in self._source_names:
            # A pending batch may have topics that no source reads any more: then the cluster prefix decides.
            prefixes = {name: source.prefix for name, source in self._sources.items()}
            longest = max(prefixes, key=lambda name: len(prefixes[name]) if topic.startswith(prefixes[name]) else -1)
            self._source_names[topic] = source_for_topic(self._sources, topic) or longest
        return self._source_names[topic]

    def locate_bad_record(self, batch: Batch, error: BaseException) -> BadRecord | None:
        """Read `batch` again to find its bad record, if `error` says that there is one."""
        if not is_bad_record_error(error):
            return None
        frames = RawBatch(self, batch).frames
        found = (reader.decoder.locate_bad_record(frames[name]) for name, reader in self.by_name.items())
        return next((bad for bad in found if bad is not None), None)

    def fetch_missing_schemas(self, batch: Batch, error: Exception) -> str | None:
        """Request the unknown schemas of `batch`, if `error` says that there is one. Return a summary.

        RetriableError if a registry does not answer.
        """
        if unknown_schema(error) is None:
            return None
        frames = RawBatch(self, batch).frames
        found = (reader.decoder.fetch_missing_schemas(error, frames[name]) for name, reader in self.by_name.items())
        return next((summary for summary in found if summary is not None), None)

    def transform_argument(self, frames: Mapping[str, DataFrame]) -> DataFrame | dict[str, DataFrame]:
        """The argument of a transform: a frame, or several frames by name."""
        return next(iter(frames.values())) if self._single else Frames(frames)

    def empty_argument(self) -> DataFrame | dict[str, DataFrame]:
        """The same without records."""
        return self.transform_argument({name: reader.decoder.empty_argument() for name, reader in self.by_name.items()})


class RawBatch:
    """The undecoded records of a batch by source and, if requested, their number and size.

    Both are known once the frames have been read; the first read counts.
    """

    def __init__(self, inputs: SourceReaders, batch: Batch, *, count: bool = False, measure: bool = False) -> None:
        ranges = inputs.ranges(batch)
        self.frames = {name: reader.raw(ranges[name], batch.topic_ids) for name, reader in inputs.by_name.items()}
        self._measure = measure
        self._observations: list[Observation] = []
        for name, frame in self.frames.items():
            if ranges[name] and (count or measure):
                observation = Observation()
                self._observations.append(observation)
                metrics = [_COUNT, _BYTES] if measure else [_COUNT]
                self.frames[name] = frame.observe(observation, *map(sql.expr, metrics))

    def records(self) -> int | None:
        """The number of records that were read; None if a frame has not been read."""
        counts = [observed_metric(observation, "records") for observation in self._observations]
        return None if None in counts else sum(count or 0 for count in counts)

    def bytes_each(self) -> float | None:
        """Mean size of a record: key and value. None if it was not measured."""
        if not self._measure:
            return None
        # If the transform runs a partial action, such as first(), the sizes cover only the records it read.
        sizes = [observed_metric(observation, "bytes") for observation in self._observations]
        counts = [observed_metric(observation, "records") for observation in self._observations]
        records = sum(count or 0 for count in counts)
        return sum(size or 0 for size in sizes) / records if records else None
