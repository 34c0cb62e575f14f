"""Plain Structured Streaming as its users write it, with the options left alone and with the options tuned."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.frame import Setting

COLUMNS = ("value", "partition", "offset")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the Kafka source, and of the session while the query starts (a query keeps a copy of it)."""

    source: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)


DEFAULT = Options()
TUNED = Options(
    source={
        # The same consumer settings that Headrace sets: nothing is kept from the other side.
        "kafka.max.poll.records": "50000",
        "kafka.max.partition.fetch.bytes": str(8 << 20),
        "kafka.receive.buffer.bytes": str(1 << 20),
        "kafka.fetch.max.wait.ms": "5",
    },
    # Two files less for every batch.
    session={"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"},
)


def records(setting: Setting, options: Options, topic: str | None = None, **more: str) -> DataFrame:
    """The topic as a stream, from its beginning."""
    reader = setting.spark.readStream.format("kafka").options(**options.source, **more)
    reader = reader.option("kafka.bootstrap.servers", setting.bootstrap).option("subscribe", topic or setting.topic)
    return reader.option("startingOffsets", "earliest").load().select(*COLUMNS)


def checkpoint(setting: Setting) -> str:
    """A fresh directory on the local disk: every run starts from nothing."""
    return str(setting.scratch / f"checkpoint-{uuid.uuid4().hex}")


@contextmanager
def configured(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Session settings for the start of one query, put back after it."""
    before = {name: spark.conf.get(name, None) for name in options}
    for name, value in options.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
