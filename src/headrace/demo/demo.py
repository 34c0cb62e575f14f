"""The demo: stores clicks from Kafka in a table exactly once, while it kills the pipeline repeatedly."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.demo.run_process import PATIENCE, Child
from headrace.demo.verify import Verdict, verify
from headrace.errors import HeadraceError
from headrace.support.optional_imports import require
from headrace.text import counted

if TYPE_CHECKING:
    from headrace.demo.verify import Mark

TOPIC = "clicks"
PARTITIONS = 4
SECONDS = 45
"""Seconds over which the events are spread: enough for the kills and the starts between them."""

PIPELINE = """\
name = "clicks"
guarantee = "exactly-once"

[source]
kafka = "{bootstrap}"
topics = ["{topic}"]
format = {{ json = "id BIGINT, user STRING, page STRING, at TIMESTAMP" }}

[transform]
sql = "SELECT id, user, page, at, _kafka.partition, _kafka.offset FROM rows"

[sink]
duckdb = "{database}"
table = "clicks"
"""


def demo(*, events: int, kills: int, seed: int | None, keep: bool) -> int:
    """Run the demo; 0 if every acknowledged event is in the table exactly once, else 1."""
    require("duckdb", extra="duckdb")
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    began = time.monotonic()
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        demo_run = _Demo(directory, events, kills, random.Random(seed))  # noqa: S311 - repeatable on purpose
        verdict = demo_run.run()
        _summary(demo_run, verdict, seed, time.monotonic() - began)
        if not verdict.good:
            keep = True
        return 0 if verdict.good else 1
    except KeyboardInterrupt:
        _say("interrupted: everything the demo started is stopped")
        return 1
    except HeadraceError as error:
        keep = True
        _say(f"the demo failed: {error.message}")
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)
        if keep:
            _say(f"kept: {directory}", last=False)
        else:
            shutil.rmtree(directory, ignore_errors=True)


class _Demo:
    def __init__(self, directory: Path, events: int, kills: int, chance: random.Random) -> None:
        self._directory = directory
        self._events = events
        self._kills = kills
        self._chance = chance
        self._ledger = directory / "produced.ids"
        self._ledger.touch()
        self._pipeline = directory / "clicks.toml"
        self._log = directory / "pipeline.log"
        self.runs: list[Child] = []
        self._reported_at = 0.0
        self.killed = 0
        self.killed_in_batch = 0

    def run(self) -> Verdict:
        from headrace import dev

        database = self._directory / "clicks.duckdb"
        _say(plan(self._events, self._kills))
        _say("starting a Kafka broker")
        with ExitStack() as cleanup:
            kafka = cleanup.enter_context(dev.Kafka(self._directory / "kafka", progress=_say))
            _say(f"kafka {kafka.bootstrap}, topic {TOPIC} with {PARTITIONS} partitions")
            _create_topic(kafka.bootstrap)
            self._pipeline.write_text(PIPELINE.format(bootstrap=kafka.bootstrap, topic=TOPIC, database=database))
            cleanup.callback(self._end_children)
            producer = self._produce(kafka.bootstrap, cleanup)
            self._run_and_kill(producer)
            self._finish(producer)
        return verify(database, "clicks", self._ledger, self.marks())

    def marks(self) -> list[Mark]:
        return [mark for run in self.runs for mark in run.marks]

    def produced(self) -> int:
        return self._ledger.stat().st_size // 8

    def stored(self) -> int:
        latest: dict[int, int] = {}
        for partition, until, _ in self.marks():
            latest[partition] = max(until, latest.get(partition, 0))
        return sum(latest.values())

    def _produce(self, bootstrap: str, cleanup: ExitStack) -> subprocess.Popen[bytes]:
        rate = max(100, self._events // SECONDS)
        _say(f"producing {self._events:,} clicks at {rate:,}/s, in a process of their own")
        arguments = [bootstrap, TOPIC, str(self._events), str(rate), str(self._ledger)]
        errors = cleanup.enter_context((self._directory / "producer.log").open("ab"))
        producer = subprocess.Popen(
            [sys.executable, "-m", "headrace.demo.producer", *arguments],
            stdin=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )

        def end() -> None:
            assert producer.stdin is not None
            producer.stdin.close()
            producer.kill()
            producer.wait()

        cleanup.callback(end)
        return producer

    def _run_and_kill(self, producer: subprocess.Popen[bytes]) -> None:
        while self.killed < self._kills:
            # Each run has a share of the clicks. A part of it is held back until the kill, so that a batch is in flight
            # then, however slow the machine is.
            share = self._events * (self.killed + 1) // (self._kills + 1)
            _allow(producer, share - self._events // (self._kills + 1) // 5)
            run = self._start()
            if not run.wait_for(lambda r: r.batches > 0, timeout=PATIENCE):
                raise HeadraceError(f"the pipeline did not get going; its log: {_tail(self._log)}")
            moment = time.monotonic() + self._chance.uniform(0.5, 4.0)
            while time.monotonic() < moment:
                self._tick()
            # A kill between two batches would prove little: wait until the next batch has been running for a moment.
            _allow(producer, share)
            run.wait_for(lambda r: r.open_batch, timeout=5)
            time.sleep(self._chance.uniform(0.0, 0.2))
            in_batch = run.open_batch
            run.kill()
            self.killed += 1
            self.killed_in_batch += in_batch
            where = "in the middle of a batch" if in_batch else "between two batches"
            _say(f"kill {self.killed}: SIGKILL {where}, {counted(self.stored(), 'row')} stored so far")
            if producer.poll() is not None:
                raise HeadraceError(f"the producer ended early; its log: {_tail(self._directory / 'producer.log')}")

    def _finish(self, producer: subprocess.Popen[bytes]) -> None:
        run = self._start()
        _allow(producer, self._events)
        while producer.poll() is None and run.alive:
            self._tick()
        run.wait_for(lambda r: r.batches > 0, timeout=PATIENCE)
        if (code := _exit_code(producer)) != 0 or self.produced() != self._events:
            log = _tail(self._directory / "producer.log")
            raise HeadraceError(f"the producer sent {self.produced():,} clicks, exit code {code}; its log: {log}")
        _say(f"produced {self.produced():,} clicks; stopping the pipeline with SIGTERM")
        if (code := run.stop()) != 0:
            raise HeadraceError(f"the pipeline ended with exit code {code}; its log: {_tail(self._log)}")
        _say("one last run, --until caught-up")
        last = self._start("--until", "caught-up")
        if (code := last.wait(PATIENCE)) != 0:
            raise HeadraceError(f"the last run ended with exit code {code}; its log: {_tail(self._log)}")

    def _start(self, *arguments: str) -> Child:
        self.runs.append(Child(self._pipeline, self._log, *arguments))
        return self.runs[-1]

    def _end_children(self) -> None:
        for run in self.runs:
            if run.alive:
                run.kill()

    def _tick(self) -> None:
        time.sleep(0.25)
        now = time.monotonic()
        if now - self._reported_at >= 3:
            self._reported_at = now
            _say(f"  produced {self.produced():>9,}   stored {self.stored():>9,}   kills {self.killed}")


def plan(events: int, kills: int) -> str:
    """Describe what the demo will do."""
    times = f"{kills} times" if kills > 1 else "once"
    return (
        f"{counted(events, 'click')} go from Kafka through Spark into DuckDB while the pipeline is killed {times};"
        " then every row is compared with what was sent"
    )


def _allow(producer: subprocess.Popen[bytes], clicks: int) -> None:
    """Allow the producer to send so many clicks in total."""
    assert producer.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, which the wait for its clicks reports
        producer.stdin.write(f"{clicks}\n".encode())
        producer.stdin.flush()


def _exit_code(producer: subprocess.Popen[bytes]) -> int:
    """Its exit code."""
    try:
        return producer.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        raise HeadraceError(f"the producer did not end within {PATIENCE:g} s") from None


def _summary(demo_run: _Demo, verdict: Verdict, seed: int, seconds: float) -> None:
    began = min(run.began for run in demo_run.runs if run.began)
    ended = max(run.ended for run in demo_run.runs if run.ended)
    busy = (ended - began).total_seconds()
    lines = {
        "produced": f"{verdict.produced:,}",
        "stored": f"{verdict.stored:,}",
        "missing": f"{verdict.missing:,}",
        "duplicate": f"{verdict.duplicate:,}",
        "never sent": f"{verdict.phantom:,}",
        "damaged": f"{verdict.damaged:,}",
        "kills": f"{demo_run.killed} by SIGKILL, {demo_run.killed_in_batch} of them inside a batch",
        "rows/s": f"{verdict.stored / busy:,.0f} over {busy:.0f} s, the kills and restarts included",
        "produce to stored": f"p50 {verdict.p50:.2f} s, p99 {verdict.p99:.2f} s, the kills included",
        "seed": f"{seed}",
        "took": f"{seconds:.0f} s",
    }
    _say("")
    for name, value in lines.items():
        _say(f"  {name:<18} {value}")
    word = "verified" if verdict.good else "NOT verified"
    _say(f"{word}: {counted(verdict.stored, 'row')}, {verdict.missing} missing, {verdict.duplicate} duplicate")


def _create_topic(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "headrace-demo", "log_level": 0})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        future.result(30)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _tail(log: Path, lines: int = 5) -> str:
    with suppress(OSError):
        return " | ".join(log.read_text(errors="replace").splitlines()[-lines:]) or "empty"
    return "none"


def _say(line: str, *, last: bool = True) -> None:
    print(line, file=sys.stdout if last else sys.stderr, flush=True)
