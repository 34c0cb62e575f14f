"""Time per small batch, collected on the driver as a `foreachBatch` function would."""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import headrace as hr
from benchmarks import structured
from benchmarks.frame import Benchmark, Bound, Contender, Schedule, Setting
from headrace import events, stores
from headrace.core.sink import Sink
from headrace.engine.engine import DirectEngine
from headrace.runtime.launch import open_sources
from headrace.runtime.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.types import Batch

RECORDS = 100
"""Per batch, over all partitions."""

FIRST = 20
"""Batches of each run that are not counted: consumers connect, and Java finds out what is called often."""


class Stopwatch:
    """Collects every batch and notes when it had it. `enough` is set when the last wanted batch is in."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._moments: list[float] = []
        self.enough = threading.Event()

    def take(self, rows: DataFrame) -> None:
        got = len(rows.collect())
        self._moments.append(time.perf_counter())
        if got != RECORDS:
            raise AssertionError(f"a batch has {got} rows where {RECORDS} are meant")
        if len(self._moments) >= self._wanted:
            self.enough.set()

    def milliseconds(self) -> list[float]:
        """From one batch in hand to the next in hand: everything a batch costs is in there, whoever does it."""
        moments = self._moments[FIRST : self._wanted]
        return [1e3 * (after - before) for before, after in pairwise(moments)]


class Collect(Sink):
    """The sink's half of the comparison: the same collect that the `foreachBatch` function does."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch

    def write(self, batch: Batch, rows: DataFrame) -> None:
        self._stopwatch.take(rows)


class SmallBatches(Benchmark):
    """The median time from one batch to the next, over a topic that is full, so that no one waits for data.

    The clock is read at the same place on both sides: when the rows of a batch have been collected. The time
    between two such moments holds one whole cycle: end offsets, planning, journal (here `begin` in SQLite,
    there the offset log), the Spark job, collect, and commit (there the commit log). Structured Streaming's own
    figure for the same cycle, triggerExecution, is kept beside it in the results as a check.
    """

    name = "small-batches"
    title = f"p50 of a batch of {RECORDS} records, collected"
    unit = "ms"
    digits = 1
    bounds = (Bound("Structured Streaming, default", 0.5, "at most"),)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._batches = FIRST + (20 if setting.quick else 60)
        self._trigger_executions: dict[str, list[float]] = {}
        self._batch_done: list[float] = []

    def schedule(self) -> Schedule:
        return Schedule(1, 1) if self.setting.quick else Schedule(warm_up=3, counted=3)

    def contenders(self) -> Sequence[Contender]:
        return (
            Contender("Headrace direct", self._headrace),
            Contender("Structured Streaming, default", lambda: self._structured("default", structured.DEFAULT)),
            Contender("Structured Streaming, tuned", lambda: self._structured("tuned", structured.TUNED)),
        )

    def details(self) -> dict[str, Any]:
        """Each side's own account of a batch, over the counted rounds; the runner's starts after end offsets."""
        last = {name: values[-self.schedule().counted :] for name, values in self._trigger_executions.items()}
        return {
            "batches per round": self._batches - FIRST,
            "triggerExecution p50 ms": {name: statistics.median(values) for name, values in last.items()},
            "BatchDone.seconds p50 ms": round(statistics.median(self._batch_done[-self.schedule().counted :]), 2),
        }

    def _headrace(self) -> float:
        setting = self.setting
        stopwatch = Stopwatch(self._batches)
        name = f"bench-{uuid.uuid4().hex[:12]}"
        pipeline = hr.Pipeline(
            name=name,
            source=hr.Kafka(setting.bootstrap, topics=[setting.topic], format=hr.Bytes()),
            transform=lambda rows: rows.select("value", "_kafka.partition", "_kafka.offset"),
            sink=Collect(stopwatch),
            guarantee="at-least-once",
            offsets=stores.SQLite(setting.scratch / f"{name}.db"),
            limits=hr.Limits(max_records=RECORDS),
        )
        seconds: list[float] = []

        def watch(event: events.Event) -> None:
            if isinstance(event, events.BatchDone):
                seconds.append(event.seconds)
                if stopwatch.enough.is_set():
                    runner.stop("enough batches")

        # What Pipeline.run() puts together, by hand: the only way to stop after so many batches.
        engine = DirectEngine(setting.spark, pipeline)
        runner = Runner(pipeline, open_sources(pipeline.sources), engine, observer=watch, fail_fast=True)
        runner.run()
        self._batch_done.append(1e3 * statistics.median(seconds[FIRST:]))
        return statistics.median(stopwatch.milliseconds())

    def _structured(self, label: str, options: structured.Options) -> float:
        setting = self.setting
        stopwatch = Stopwatch(self._batches)

        def take(rows: DataFrame, batch_id: int) -> None:
            if not stopwatch.enough.is_set():
                stopwatch.take(rows)

        session = {"spark.sql.streaming.numRecentProgressUpdates": str(self._batches * 2), **options.session}
        with structured.configured(setting.spark, session):
            stream = structured.records(setting, options, maxOffsetsPerTrigger=str(RECORDS)).writeStream
            stream = stream.option("checkpointLocation", structured.checkpoint(setting))
            query = stream.foreachBatch(take).start()
            while not stopwatch.enough.wait(0.1) and query.isActive:
                pass
            failed = query.exception()
            progress = query.recentProgress
            query.stop()
        if failed is not None:
            raise failed
        executions = [p.durationMs["triggerExecution"] for p in progress[FIRST : self._batches]]
        self._trigger_executions.setdefault(label, []).append(statistics.median(executions))
        return statistics.median(stopwatch.milliseconds())
