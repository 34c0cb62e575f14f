"""The sources of a pipeline: each one's records of a batch, read where and as it asks, and decoded."""

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
from headrace.spark.observation import observe_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace.errors import BadRecord
    from headrace.kafka.source import Kafka
    from headrace.runtime.pipeline import Pipeline
    from headrace.types import Batch, Range, TopicPartition

_COUNT = "count(1) AS records"
_WEIGHT = "sum(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)) AS bytes"


class SourceReader:
    """One source. `whole`: its partitions are read in one task each, in the order of the log."""

    def __init__(self, spark: SparkSession, source: Kafka, group: str, *, whole: bool) -> None:
        self.source = source
        names = source.subscription.names or ()
        self.decoder = Decoder(spark, source.format, source.key_format, names, source.cluster_topic_name)
        where = LocalityHints(spark, source, self._leaders)
        self._reader = RangeReader(spark, source.bootstrap, source.options, group, prefix=source.prefix, location=where)
        self._whole = whole or not source.split

    def _leaders(self, topics: Iterable[str]) -> dict[TopicPartition, str]:
        return self.cluster.leaders(topics)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.of(self.source)

    def close(self) -> None:
        if "cluster" in vars(self):
            self.cluster.close()

    def raw(self, ranges: Sequence[Range], ids: Mapping[str, str]) -> DataFrame:
        """The records of `ranges` as Kafka has them; `ids` are those of their topics."""
        return self._reader.rows(ranges, ids) if self._whole else self._reader.dealt(ranges, ids)


class SourceReaders:
    """All of them, by name. Made once per run; asks schema registries."""

    def __init__(self, spark: SparkSession, source: Kafka | Mapping[str, Kafka], group: str, *, whole: bool) -> None:
        self._sources = sources_by_name(source)
        self.each = {name: SourceReader(spark, one, group, whole=whole) for name, one in self._sources.items()}
        self._one = not isinstance(source, Mapping)
        self._owners: dict[str, str] = {}

    @classmethod
    def of(cls, spark: SparkSession, pipeline: Pipeline) -> Self:
        return cls(
            spark, pipeline.source, f"headrace-{pipeline.name}", whole=pipeline.sink.needs_one_task_per_partition
        )

    def close(self) -> None:
        """Let go of the connections to the clusters."""
        for one in self.each.values():
            one.close()

    def renew(self) -> None:
        """A new batch begins."""
        for one in self.each.values():
            one.decoder.renew()

    def ranges(self, batch: Batch) -> dict[str, list[Range]]:
        """The ranges of each source."""
        found: dict[str, list[Range]] = {name: [] for name in self.each}
        for r in batch.ranges:
            found[self._owner(r.at.topic)].append(r)
        return found

    def topic_check(self, batch: Batch) -> TopicCheck:
        """Compares the ids of the batch's topics with those that it was planned with."""
        ids: dict[str, dict[str, str]] = {}
        for topic, known in batch.topic_ids.items():
            ids.setdefault(self._owner(topic), {})[topic] = known
        planned = {
            name: PlannedTopics(source.bootstrap, dict(source.options), source.prefix, ids[name])
            for name, source in self._sources.items()
            if name in ids
        }
        return TopicCheck(list(planned.values()), [self.each[name].cluster for name in planned])

    def _owner(self, topic: str) -> str:
        if topic not in self._owners:
            # A batch that was begun may have topics that nobody asks for any more: the cluster's name may tell.
            prefixes = {name: source.prefix for name, source in self._sources.items()}
            near = max(prefixes, key=lambda name: len(prefixes[name]) if topic.startswith(prefixes[name]) else -1)
            self._owners[topic] = source_for_topic(self._sources, topic) or near
        return self._owners[topic]

    def locate_bad_record(self, batch: Batch, error: BaseException) -> BadRecord | None:
        """The bad record that made a reading of `batch` fail with `error`, if that says so: it is looked for."""
        if not is_bad_record_error(error):
            return None
        frames = RawBatch(self, batch).frames
        found = (one.decoder.first_bad(frames[name]) for name, one in self.each.items())
        return next((bad for bad in found if bad is not None), None)

    def fetch_missing_schemas(self, batch: Batch, error: Exception) -> str | None:
        """What registries told of the schemas whose lack made a reading of `batch` fail with `error`, if that says so.

        RetriableError if a registry does not answer.
        """
        if unknown_schema(error) is None:
            return None
        frames = RawBatch(self, batch).frames
        found = (one.decoder.learn(error, frames[name]) for name, one in self.each.items())
        return next((news for news in found if news is not None), None)

    def given(self, frames: Mapping[str, DataFrame]) -> DataFrame | dict[str, DataFrame]:
        """What a transform takes: a frame, or several by name."""
        return next(iter(frames.values())) if self._one else Frames(frames)

    def empty(self) -> DataFrame | dict[str, DataFrame]:
        """The same of no records."""
        return self.given({name: one.decoder.empty() for name, one in self.each.items()})


class RawBatch:
    """The undecoded records of a batch by source and, if asked for, how many there are and how large they are.

    Both are known once the frames have been read, by whatever reads them first.
    """

    def __init__(self, inputs: SourceReaders, batch: Batch, *, count: bool = False, weigh: bool = False) -> None:
        ranges = inputs.ranges(batch)
        self.frames = {name: one.raw(ranges[name], batch.topic_ids) for name, one in inputs.each.items()}
        self._weigh = weigh
        self._scales: list[Observation] = []
        for name, frame in self.frames.items():
            if ranges[name] and (count or weigh):
                scale = Observation()
                self._scales.append(scale)
                self.frames[name] = frame.observe(scale, *map(sql.expr, [_COUNT, _WEIGHT] if weigh else [_COUNT]))

    def records(self) -> int | None:
        """How many were read; None if not all frames were."""
        counts = [observe_batch(scale, "records") for scale in self._scales]
        return None if None in counts else sum(count or 0 for count in counts)

    def bytes_each(self) -> float | None:
        """Of the key and value of a record; None if nobody weighed them."""
        if not self._weigh:
            return None
        # A transform that looks at its first rows ends the weighing there: what counts is what was weighed.
        weights = [observe_batch(scale, "bytes") for scale in self._scales]
        counts = [observe_batch(scale, "records") for scale in self._scales]
        records = sum(count or 0 for count in counts)
        return sum(weight or 0 for weight in weights) / records if records else None
