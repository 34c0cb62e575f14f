"""`python -m benchmarks`: one broker, one topic, one Spark session; a table, results.json, and exit 1 on a miss."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.table import Table

import headrace as hr
from benchmarks import topic
from benchmarks.frame import Benchmark, Result, Setting, measure
from benchmarks.small_batches import SmallBatches
from benchmarks.throughput import Throughput
from headrace import dev
from headrace.dev.kafka import KAFKA
from headrace.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

BENCHMARKS: Sequence[type[Benchmark]] = (Throughput, SmallBatches)
RESULTS = Path(__file__).with_name("results.json")
TOPIC = "clicks"
# Spark pools consumers for five minutes with what they have fetched. Each round starts with new ones, and those
# of the rounds before would fill the heap: the same for every contender, so all of them let go early.
SESSION = {
    f"spark.kafka.consumer.{pool}.{setting}": value
    for pool in ("cache", "fetchedData.cache")
    for setting, value in (("timeout", "5s"), ("evictorThreadRunInterval", "1s"))
}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _arguments(arguments)
    # SIGTERM unwinds like Ctrl-C, so that broker and directory go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)  # in a log file nothing needs to wrap
    began = time.monotonic()
    say = _teller(console, began)
    machine = _machine()
    benchmarks = [kind for kind in BENCHMARKS if not chosen.only or kind.name in chosen.only]
    with _setting(chosen.records, chosen.quick, say) as setting:
        versions = _versions(setting.spark)
        results = [measure(kind(setting), say) for kind in benchmarks]
        report = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "passed": all(result.passed for result in results),
            "machine": machine,
            "versions": versions,
            "topic": {"records": chosen.records, "partitions": topic.PARTITIONS},
            "seconds": round(time.monotonic() - began),
            "benchmarks": {result.benchmark.name: result.as_json() for result in results},
        }
    console.print()
    for result in results:
        console.print(_table(result))
    _keep(report, chosen, console)
    return 0 if report["passed"] else 1


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Headrace against Structured Streaming.")
    names = [kind.name for kind in BENCHMARKS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {names}")
    parser.add_argument("--quick", action="store_true", help="one counted round and a small topic: a smoke test")
    parser.add_argument("--records", type=int, help="size of the topic (4,000,000; quick: 400,000)")
    parser.add_argument("--out", type=Path, help="where results go (results.json here, for whole runs only)")
    chosen = parser.parse_args(given)
    chosen.records = chosen.records or (400_000 if chosen.quick else 4_000_000)
    if chosen.records < 20_000 or chosen.records % topic.PARTITIONS:
        parser.error(f"--records: at least 20,000, and a multiple of {topic.PARTITIONS}")
    if chosen.out is None and not chosen.only and not chosen.quick:
        chosen.out = RESULTS
    return chosen


@contextmanager
def _setting(records: int, quick: bool, say: Callable[[str], None]) -> Iterator[Setting]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        with dev.Kafka(directory / "kafka", progress=say) as kafka:
            say(f"filling the topic with {records:,} records")
            topic.fill(kafka.bootstrap, TOPIC, records)
            say("starting Spark")
            spark = session.create(SESSION, say)
            try:
                yield Setting(spark, kafka.bootstrap, TOPIC, records, directory, quick)
            finally:
                spark.stop()


def _teller(console: Console, began: float) -> Callable[[str], None]:
    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f}s[/dim] {line}")

    return say


def _table(result: Result) -> Table:
    benchmark = result.benchmark
    count = len(result.rounds[result.ours])
    table = Table(title=f"{benchmark.title} (median of {count} rounds)", title_justify="left")
    table.add_column("contender")
    for heading in (benchmark.unit, "lowest", "highest", "Headrace is", "bound"):
        table.add_column(heading, justify="right")
    for name, values in result.rounds.items():
        numbers = [f"{x:,.{benchmark.digits}f}" for x in (result.median(name), min(values), max(values))]
        ratio = "" if name == result.ours else f"{result.ratio(name):.2f}x"
        bound = result.bound(name)
        verdict = ""
        if bound is not None:
            verdict = f"{bound}: " + ("[green]holds[/]" if bound.holds(result.ratio(name)) else "[red]MISSED[/]")
        table.add_row(name, *numbers, ratio, verdict)
    return table


def _keep(report: dict[str, Any], chosen: argparse.Namespace, console: Console) -> None:
    if chosen.out is None:
        console.print("not a whole run: results.json stays as it was (--out FILE keeps this one)")
        return
    chosen.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.print(f"results: {chosen.out.name}")


def _machine() -> dict[str, Any]:
    """Also what the machine was busy with before: a number taken beside other work is not worth much."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory GB": round(psutil.virtual_memory().total / 2**30),
        "load before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _versions(spark: SparkSession) -> dict[str, str]:
    jvm: Any = spark.sparkContext._jvm
    return {
        "headrace": hr.__version__,
        "spark": spark.version,
        "kafka broker": KAFKA.version,
        "confluent-kafka": version("confluent-kafka"),
        "java": jvm.System.getProperty("java.version"),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
