"""Rows a second from the topic into a sink that does nothing."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import headrace as hr
from benchmarks import structured
from benchmarks.frame import Benchmark, Bound, Contender, Schedule
from headrace import stores
from headrace.core.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.types import Batch


class Nowhere(Sink):
    """Spark reads and decodes every row and drops it: what is left is the cost of the way there."""

    def write(self, batch: Batch, rows: DataFrame) -> None:
        rows.write.format("noop").mode("append").save()


class Throughput(Benchmark):
    """Wall time of the whole run, from the call to its return.

    Headrace: `Pipeline.run(until="caught-up")` in one batch, as theirs is, and a SQLite file for the offsets, so
    connecting, planning, journal and commits are in the number. Structured Streaming: from `start()` to the end
    of an availableNow query, with its checkpoint on the same disk. Both start with new consumers (a new
    pipeline name here, a new query there), read the same columns and leave them at the noop data source.
    """

    name = "throughput"
    title = "throughput into a no-op sink"
    unit = "rows/s"
    bounds = (
        Bound("Structured Streaming, default", 2.0, "at least"),
        Bound("Structured Streaming, tuned", 1.1, "at least"),
    )

    def schedule(self) -> Schedule:
        return Schedule(1, 1) if self.setting.quick else Schedule(warm_up=2, counted=5)

    def contenders(self) -> Sequence[Contender]:
        return (
            Contender("Headrace direct", self._headrace),
            Contender("Structured Streaming, default", lambda: self._structured(structured.DEFAULT)),
            Contender("Structured Streaming, tuned", lambda: self._structured(structured.TUNED)),
        )

    def _headrace(self) -> float:
        setting = self.setting
        name = f"bench-{uuid.uuid4().hex[:12]}"
        pipeline = hr.Pipeline(
            name=name,
            source=hr.Kafka(setting.bootstrap, topics=[setting.topic], format=hr.Bytes()),
            transform=lambda rows: rows.select("value", "_kafka.partition", "_kafka.offset"),
            sink=Nowhere(),
            guarantee="at-least-once",
            offsets=stores.SQLite(setting.scratch / f"{name}.db"),
            # As much in a batch as Structured Streaming takes without a limit of its own: everything.
            limits=hr.Limits(max_records=setting.records),
        )
        began = time.perf_counter()
        summary = pipeline.run(until="caught-up", session=setting.spark, fail_fast=True)
        return self._rate(summary.records, time.perf_counter() - began)

    def _structured(self, options: structured.Options) -> float:
        setting = self.setting
        with structured.configured(setting.spark, options.session):
            began = time.perf_counter()
            stream = structured.records(setting, options).writeStream.format("noop")
            stream = stream.option("checkpointLocation", structured.checkpoint(setting))
            query = stream.trigger(availableNow=True).start()
            query.awaitTermination()
            seconds = time.perf_counter() - began
        return self._rate(sum(progress.numInputRows for progress in query.recentProgress), seconds)

    def _rate(self, seen: int, seconds: float) -> float:
        if seen != self.setting.records:
            raise AssertionError(f"{seen} records were read where the topic has {self.setting.records}")
        return seen / seconds
