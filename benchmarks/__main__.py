"""`python -m benchmarks`: one broker, one topic, one Spark session; a table, results.json, and exit 1 on a miss."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks import machine, report, topic
from benchmarks.decode import DecodeAvro, DecodeJson
from benchmarks.frame import Benchmark, Result, Setting, measure
from benchmarks.kafka_to_kafka import KafkaToKafka
from benchmarks.memory import Memory
from benchmarks.postgres import DRIVER, IntoPostgres
from benchmarks.small_batches import SmallBatches
from benchmarks.store_commits import StoreCommits
from benchmarks.throughput import Throughput
from headrace import dev
from headrace.jars import cache
from headrace.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BENCHMARKS: Sequence[type[Benchmark]] = (
    Throughput,
    SmallBatches,
    DecodeJson,
    DecodeAvro,
    KafkaToKafka,
    IntoPostgres,
    Memory,
    StoreCommits,
)
HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"
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
    # In a log file nothing needs to wrap.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f}s[/dim] {line}")

    found: dict[str, Any] = {"machine": machine.description()}
    if warning := machine.busy():
        console.print(f"[yellow]{warning}; expect noise[/]")
    with _setting(chosen.records, chosen.quick, say) as setting:
        found["versions"] = machine.versions(setting.spark)
        results = [measure(kind(setting), say) for kind in chosen.benchmarks]
    found |= {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "topic": {"records": chosen.records, "partitions": topic.PARTITIONS},
        "seconds": round(time.monotonic() - began),
        "passed": all(result.passed for result in results),
        "benchmarks": {result.benchmark.name: result.as_json() for result in results},
    }
    console.print()
    for result in results:
        console.print(report.table(result))
    _keep(found, results, chosen, console)
    return 0 if found["passed"] else 1


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Headrace against Structured Streaming.")
    names = [kind.name for kind in BENCHMARKS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=" or ".join(names))
    parser.add_argument("--quick", action="store_true", help="one counted round, a small topic: a smoke test")
    parser.add_argument("--records", type=int, help="size of the topic (4,000,000; quick: 400,000)")
    parser.add_argument("--out", type=Path, help="where the results go; by default results.json of a whole run")
    chosen = parser.parse_args(given)
    chosen.benchmarks = [kind for kind in BENCHMARKS if not chosen.only or kind.name in chosen.only]
    chosen.records = chosen.records or (400_000 if chosen.quick else 4_000_000)
    if chosen.records < 20_000 or chosen.records % topic.PARTITIONS:
        parser.error(f"--records: at least 20,000, and a multiple of {topic.PARTITIONS}")
    return chosen


@contextmanager
def _setting(records: int, quick: bool, say: Callable[[str], None]) -> Iterator[Setting]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        with ExitStack() as servers:
            kafka = servers.enter_context(dev.Kafka(directory / "kafka", progress=say))
            say(f"filling the topic with {records:,} records")
            topic.fill(kafka.bootstrap, TOPIC, records)
            say("starting Spark")
            driver = cache.fetch(DRIVER, say)
            spark = session.create({**SESSION, "spark.jars": ",".join(map(str, driver))}, say)
            try:
                yield Setting(spark, kafka.bootstrap, TOPIC, records, directory, quick, servers)
            finally:
                if session.alive(spark):
                    spark.stop()


def _keep(found: dict[str, Any], results: Sequence[Result], chosen: argparse.Namespace, console: Console) -> None:
    text = json.dumps(found, indent=2) + "\n"
    if chosen.out is not None:
        chosen.out.write_text(text, encoding="utf-8")
        console.print(f"results: {chosen.out}")
    elif chosen.only or chosen.quick:
        console.print("not a whole run: results.json stays as it was (--out FILE keeps this one)")
    else:
        RESULTS.write_text(text, encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(report.inserted(page, report.markdown(found, results)), encoding="utf-8")
        console.print(f"results: {RESULTS.name} and the table in {PAGE.name}")


if __name__ == "__main__":
    sys.exit(main())
