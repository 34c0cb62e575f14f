"""A burst into a sink that is slow: batches shrink, the lag drains, and no batch takes more memory than before."""

import time
import uuid

import pytest

import headrace as hr
from headrace import events, sinks, stores
from support.background_run import BackgroundRun

SECONDS = 0.5
QUICK, SLOW = 8_000, 3_000
"""Records a second that the sink takes, before the burst and after it."""
STEADY, BURST = 3_000, 15_000


class SlowSink(sinks.Sink):
    """Takes its time for each record."""

    needs_one_task_per_partition = False

    def __init__(self):
        self.per_second = QUICK
        self.numbers = []

    def write(self, batch, rows):
        began = time.monotonic()
        table = rows.select("n").toArrow()
        time.sleep(max(0.0, table.num_rows / self.per_second - (time.monotonic() - began)))
        self.numbers += table["n"].to_pylist()


def heap(spark):
    """What Spark's process holds on to, in bytes."""
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return runtime.totalMemory() - runtime.freeMemory()


@pytest.mark.timeout(180)
def test_a_burst_into_a_slow_sink_makes_batches_small_and_the_lag_drain(spark, topic):
    where = topic(partitions=2)
    sink = SlowSink()
    pipeline = hr.Pipeline(
        name=f"burst-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("n INT, padding STRING")),
        sink=sink,
        guarantee="at-least-once",
        offsets=stores.Memory(),
        limits=hr.Limits(batch_seconds=SECONDS, first_records=500),
    )
    with BackgroundRun(pipeline, spark) as live:

        def drained(count):
            return lambda: len(sink.numbers) == count and isinstance(live.seen[-1], events.CaughtUp)

        where.produce([{"n": number, "padding": "x" * 50} for number in range(STEADY)])
        live.wait(drained(STEADY))
        before, sink.per_second, heap_before = len(live.all(events.BatchDone)), SLOW, heap(spark)
        where.produce([{"n": number, "padding": "x" * 50} for number in range(STEADY, STEADY + BURST)])
        live.wait(drained(STEADY + BURST), seconds=120)

    burst = live.all(events.BatchDone)[before:]
    sizes = [len(event.batch) for event in burst]
    print("sizes", sizes, "lag", [event.lag for event in burst])
    assert sorted(sink.numbers) == list(range(STEADY + BURST))
    # Without a limit the whole burst would be one batch. The first ones still have the size of quicker days.
    assert max(sizes) <= QUICK * SECONDS * 1.5
    settled = sizes[3:-1]
    assert len(settled) > 5
    assert max(settled) <= SLOW * SECONDS * 1.3
    lags = [event.lag for event in burst]
    peak = lags.index(max(lags))
    assert lags[peak:] == sorted(lags[peak:], reverse=True)
    assert lags[-1] == 0
    # Memory is bounded by the size of a batch, not by what is waiting.
    assert heap(spark) <= heap_before + 64e6
