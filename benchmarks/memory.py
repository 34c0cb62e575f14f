"""Memory of the Python processes while one batch goes into PostgreSQL: it must not grow with the batch."""

from __future__ import annotations

import os
import threading
import uuid
from typing import TYPE_CHECKING

import psutil
import psycopg

import headrace as hr
from benchmarks import topic
from benchmarks.frame import Benchmark, Bound, Contender, Schedule, Setting
from benchmarks.postgres import SCHEMA
from headrace import dev, sinks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

TOPIC = "clicks-at-once"


class Memory(Benchmark):
    """The peak of driver and workers together, each batch through the executors, in Spark's default memory here (2 GB).

    The JVM is not in the number: it takes what it is allowed to. That a batch passes at all shows that it fits.
    """

    name = "memory"
    title = "peak memory of the Python processes, one batch into PostgreSQL"
    unit = "MB"
    bounds = (Bound("a batch of a tenth", 1.3, "at most"),)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._rows = 200_000 if setting.quick else 5_000_000
        topic.fill(setting.bootstrap, TOPIC, self._rows)
        self._dsn = setting.servers.enter_context(dev.Postgres(setting.scratch / "postgres-memory")).address

    def schedule(self) -> Schedule:
        return Schedule(warm_up=0, counted=1)

    def contenders(self) -> Sequence[Contender]:
        tenth = self._rows // 10
        return (
            Contender(f"a batch of {self._rows:,} rows", lambda: self._peak(self._rows)),
            Contender("a batch of a tenth", lambda: self._peak(tenth)),
        )

    def _peak(self, rows: int) -> float:
        table = f"clicks_{uuid.uuid4().hex[:12]}"
        pipeline = hr.Pipeline(
            name=f"bench-{table}",
            source=hr.Kafka(self.setting.bootstrap, topics=[TOPIC], format=hr.Json(SCHEMA)),
            sink=sinks.Postgres(self._dsn, table, create=True),
            guarantee="exactly-once",
            limits=hr.Limits(max_records=rows),
        )
        with Watch() as watch:
            pipeline.run(until="caught-up", session=self.setting.spark, fail_fast=True)
        with psycopg.connect(self._dsn) as connection:
            ((stored,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
            connection.execute(f"DROP TABLE {table}")
        if stored != self._rows:
            raise AssertionError(f"{stored} rows are in the table where the topic has {self._rows}")
        return watch.peak / 1e6


class Watch:
    """Looks at this process and the Python processes below it, ten times a second."""

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        me = psutil.Process(os.getpid())
        while not self._done.wait(0.1):
            below = [process for process in me.children(recursive=True) if _is_python(process)]
            self.peak = max(self.peak, sum(_size(process) for process in (me, *below)))


def _is_python(process: psutil.Process) -> bool:
    try:
        return "python" in process.name()
    except psutil.Error:
        return False


def _size(process: psutil.Process) -> int:
    """What the process has alone: workers share what they were forked with."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0
