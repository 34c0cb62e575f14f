"""A burst of ten times the usual records into a slow sink, with and without a time that a batch should take.

python -m benchmarks.burst [--picture FILE.svg]: prints what was seen, and draws it (which needs matplotlib).
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka import Producer

import headrace as hr
from benchmarks import topic
from headrace import dev, events, sinks, stores
from headrace.engine.engine import DirectEngine
from headrace.runtime.launch import open_sources
from headrace.runtime.runner import Runner
from headrace.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.types import Batch

USUAL, TIMES = 2_000, 10
QUIET, BURST, BUSY, AFTER = 10.0, 10.0, 10.0, 40.0
TAKES = 10_000
"""Records a second that the sink takes; half as many from the burst until BUSY seconds behind it, like a store."""
SECONDS = 2.0
WARM_UP = 20.0  # with the burst, so that the JVM has the memory it wants


class Slow(sinks.Sink):
    """A store with a speed of its own. What a batch holds is in this process meanwhile."""

    needs_one_task_per_partition = False

    def __init__(self, began: float) -> None:
        self._began = began

    def write(self, batch: Batch, rows: DataFrame) -> None:
        left = float(rows.select("value").toArrow().num_rows)
        before = time.monotonic()
        while left > 0:
            time.sleep(0.05)
            now = time.monotonic()
            busy = QUIET < now - self._began < QUIET + BURST + BUSY
            left -= (now - before) * (TAKES / 2 if busy else TAKES)
            before = now


@dataclass
class Seen:
    """What one run showed: each a list of (second, number)."""

    batches: list[tuple[float, int]] = field(default_factory=list)
    lags: list[tuple[float, int]] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)


def observe(spark: SparkSession, bootstrap: str, limits: hr.Limits, seconds: float) -> Seen:
    name = f"burst-{uuid.uuid4().hex[:8]}"
    topic.create(bootstrap, name, topic.PARTITIONS)
    seen, began = Seen(), time.monotonic()
    feed = Feed(bootstrap, name, began, seconds)
    pipeline = hr.Pipeline(
        name=name,
        source=hr.Kafka(bootstrap, topics=[name], format=hr.Bytes()),
        sink=Slow(began),
        guarantee="at-least-once",
        offsets=stores.Memory(),
        limits=limits,
    )

    done: list[int] = []

    def watch(event: events.Event) -> None:
        if isinstance(event, events.BatchDone):
            done.append(len(event.batch))
            seen.batches.append((time.monotonic() - began, len(event.batch)))
            seen.lags.append((time.monotonic() - began, feed.sent - sum(done)))

    runner = Runner(pipeline, open_sources(pipeline.sources), DirectEngine(spark, pipeline), observer=watch)
    threads = [threading.Thread(target=runner.run), threading.Thread(target=_weigh, args=(seen, began, runner))]
    for thread in threads:
        thread.start()
    feed.run()
    while sum(done) < feed.sent and time.monotonic() - began < 180:
        time.sleep(0.1)
    runner.stop("enough")
    for thread in threads:
        thread.join()
    return seen


class Feed:
    """The usual records, and TIMES as many in the burst."""

    def __init__(self, bootstrap: str, name: str, began: float, seconds: float) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        )
        self._name, self._began, self._seconds = name, began, seconds
        self.sent = 0

    def run(self) -> None:
        while (now := time.monotonic() - self._began) < self._seconds:
            burst = min(max(now - QUIET, 0.0), BURST)
            wanted = int(USUAL * (now + (TIMES - 1) * burst))
            for _ in range(wanted - self.sent):
                self._producer.produce(self._name, b"x" * 200)
            self.sent = wanted
            self._producer.poll(0.02)
        self._producer.flush(60)


def _weigh(seen: Seen, began: float, runner: Runner) -> None:
    """This process and the JVM below it, twice a second."""
    while not runner._stop.requested.wait(0.5):
        process = psutil.Process()
        total = sum(one.memory_info().rss for one in (process, *process.children(recursive=True)) if one.is_running())
        seen.memory.append((time.monotonic() - began, total / 1e6))


def draw(runs: dict[str, Seen], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "headrace", "svg.fonttype": "none"}
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, figsize=(8, 7.5), sharex=True)
    parts: list[tuple[Any, str, str]] = [
        (axes[0], "records waiting", "lags"),
        (axes[1], "records in a batch", "batches"),
        (axes[2], "memory, MB", "memory"),
    ]
    for axis, label, what in parts:
        axis.axvspan(QUIET, QUIET + BURST, color="0.92", label="burst")
        for (name, seen), colour in zip(runs.items(), ("tab:blue", "tab:orange"), strict=True):
            points = getattr(seen, what)
            style = "o-" if what == "batches" else "-"
            axis.plot([at for at, _ in points], [n for _, n in points], style, color=colour, label=name, markersize=3)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(loc="upper right", fontsize=8)
    axes[2].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--picture", type=Path)
    chosen = arguments.parse_args()
    limited = hr.Limits(batch_seconds=SECONDS, first_records=1_000)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = stack.enter_context(dev.Kafka(scratch / "kafka")).bootstrap
        spark = session.create({})
        observe(spark, bootstrap, limited, WARM_UP)
        whole = QUIET + BURST + AFTER
        runs = {
            f"batch_seconds={SECONDS:g}": observe(spark, bootstrap, limited, whole),
            "no such limit": observe(spark, bootstrap, hr.Limits(), whole),
        }
    for name, seen in runs.items():
        drained = next((at for at, lag in seen.lags if at > QUIET + BURST and lag < 2 * USUAL), float("nan"))
        memory = [mb for _, mb in seen.memory]
        print(
            f"{name}: largest batch {max(n for _, n in seen.batches):,}, smallest in the burst "
            f"{min((n for at, n in seen.batches if QUIET + 5 < at < QUIET + BURST + BUSY), default=0):,}, most waiting "
            f"{max(lag for _, lag in seen.lags):,}, drained after {drained:.0f} s, memory {min(memory):,.0f} to "
            f"{max(memory):,.0f} MB"
        )
    if chosen.picture:
        draw(runs, chosen.picture)


if __name__ == "__main__":
    main()
