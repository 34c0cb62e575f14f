"""Rows a second from one topic to another."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace as hr
from benchmarks import structured, topic
from benchmarks.frame import Benchmark, Bound, Contender, Schedule, Setting
from headrace import sinks
from headrace.testing.committed_records import read_committed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).parent
QUIX = HERE.parent / ".tools" / "quix" / "bin" / "python"
TOPIC = "clicks-to-copy"
SLOW = 10
"""Quix Streams copies this part of the topic: a rate needs no more, and the others are done long before."""
BATCHING = {"kafka.linger.ms": "20", "kafka.compression.type": "lz4", "kafka.batch.size": str(512 << 10)}


class KafkaToKafka(Benchmark):
    """Copies the values of a topic of 4 partitions into a new one of 4, without looking into them.

    Headrace, Quix Streams and the bare loop are exactly-once, Spark's sink is at-least-once. Headrace and Spark: from
    the call to its return, one batch on each side, in the same session, read with the same consumer settings. The
    others: from the first question to the last commit, in a process of their own, without its start.
    """

    name = "kafka-to-kafka"
    title = "Kafka to Kafka"
    unit = "rows/s"
    bounds = (
        Bound("Spark's Kafka sink, default, at-least-once", 1.0, "at least"),
        Bound("Spark's Kafka sink, batching tuned, at-least-once", 0.7, "at least"),
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._records = 200_000 if setting.quick else 2_000_000
        topic.fill(setting.bootstrap, TOPIC, self._records)

    def schedule(self) -> Schedule:
        return Schedule(1, 1) if self.setting.quick else Schedule(warm_up=1, counted=3)

    def contenders(self) -> Sequence[Contender]:
        return (
            Contender("Headrace, exactly-once", self._headrace),
            Contender("Spark's Kafka sink, default, at-least-once", lambda: self._spark({})),
            Contender("Spark's Kafka sink, batching tuned, at-least-once", lambda: self._spark(BATCHING)),
            Contender("bare confluent-kafka loop, exactly-once", lambda: self._loop(sys.executable, "bare", 1)),
            Contender("Quix Streams, exactly-once", lambda: self._loop(str(QUIX), "quix", SLOW)),
        )

    def _headrace(self) -> float:
        target = self._target()
        pipeline = hr.Pipeline(
            name=f"bench-{target}",
            source=hr.Kafka(self.setting.bootstrap, topics=[TOPIC]),
            sink=sinks.Kafka(self.setting.bootstrap, target, format=hr.Bytes()),
            guarantee="exactly-once",
            limits=hr.Limits(max_records=self._records),
        )
        began = time.perf_counter()
        pipeline.run(until="caught-up", session=self.setting.spark, fail_fast=True)
        return self._rate(target, time.perf_counter() - began, 1)

    def _spark(self, options: Mapping[str, str]) -> float:
        target, tuned = self._target(), structured.TUNED
        with structured.configured(self.setting.spark, tuned.session):
            began = time.perf_counter()
            records = structured.records(self.setting, tuned, topic=TOPIC).select("value")
            stream = records.writeStream.format("kafka").option("kafka.bootstrap.servers", self.setting.bootstrap)
            stream = stream.option("topic", target).options(**options)
            stream = stream.option("checkpointLocation", structured.checkpoint(self.setting))
            stream.trigger(availableNow=True).start().awaitTermination()
            seconds = time.perf_counter() - began
        return self._rate(target, seconds, 1)

    def _loop(self, python: str, name: str, part: int) -> float:
        target = self._target()
        arguments = [self.setting.bootstrap, TOPIC, target, str(self._records // part)]
        done = subprocess.run(
            [python, str(HERE / "loops" / f"{name}.py"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode != 0:
            raise AssertionError(f"{name} failed: {done.stderr[-2_000:]}")
        return self._rate(target, float(done.stdout.split()[-1]), part)

    def _target(self) -> str:
        name = f"copy-{uuid.uuid4().hex[:12]}"
        topic.create(self.setting.bootstrap, name, topic.PARTITIONS)
        return name

    def _rate(self, target: str, seconds: float, part: int) -> float:
        """Counted as a reader of committed records sees them."""
        wanted = self._records // part
        found: Any = len(read_committed(self.setting.bootstrap, target, seconds=120))
        topic.delete(self.setting.bootstrap, target)
        if found != wanted:
            raise AssertionError(f"{found} records are in the target where {wanted} were to be copied")
        return wanted / seconds
