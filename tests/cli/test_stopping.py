"""A stop: the batch in hand is finished and counted; a deadline; a second signal."""

import os
import signal
import sqlite3
import textwrap
import time
from contextlib import suppress

import duckdb
import psutil
import pytest

from support.command_line import SOON, HeadraceProcess

AT_ONCE = 5.0
"""Seconds: a second on a machine that has nothing else to do."""

APP = """
    import threading, time
    from pathlib import Path

    import headrace as hr
    from headrace import sinks, stores
    from pyspark.sql.functions import udf
    from pyspark.sql.types import LongType

    HERE = Path(__file__).parent

    @udf(LongType())
    def slowly(number):
        (HERE / "begun").touch()
        time.sleep({seconds})
        return number

    def to_duckdb(sink):
        return dict(sink=sink(HERE / "x.duckdb", table="t"), guarantee="exactly-once")

    def at_most_once():
        return dict(
            sink=sinks.Parquet(HERE / "rows"), guarantee="at-most-once", offsets=stores.SQLite(HERE / "offsets.db")
        )

    class Stuck(sinks.DuckDB):
        def write(self, batch, rows):
            (HERE / "begun").touch()
            threading.Event().wait()

    clicks = hr.Pipeline(
        name="clicks",
        source=hr.Kafka("{bootstrap}", topics=["{topic}"], format=hr.Json("id BIGINT")),
        transform=lambda rows: rows.select(slowly("id").alias("id")),
        **{delivery},
        limits=hr.Limits(max_records=20),
    )
"""


@pytest.fixture
def running(topic, tmp_path):
    """Start a pipeline that takes `seconds` for a record, and wait until it has a batch in hand."""
    where = topic(partitions=2)
    where.produce([{"id": number} for number in range(2000)])
    started = []

    def start(*arguments, seconds, delivery="to_duckdb(sinks.DuckDB)"):
        values = {"seconds": seconds, "bootstrap": where.bootstrap, "topic": where.name, "delivery": delivery}
        (tmp_path / "app.py").write_text(textwrap.dedent(APP).format(**values))
        run = HeadraceProcess("run", "app.py:clicks", "--log-format", "json", *arguments, cwd=tmp_path)
        started.append(run)
        run.wait_for((tmp_path / "begun").exists)
        return run

    yield start
    for run in started:
        run.__exit__()


def stored(tmp_path):
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        there = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 't'").fetchone()
        return sorted(number for (number,) in connection.execute("SELECT id FROM t").fetchall()) if there[0] else []


def committed(tmp_path):
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        return connection.execute("SELECT coalesce(sum(next_offset), 0) FROM headrace_offsets").fetchone()[0]


@pytest.mark.parametrize(
    ("number", "everyone"),
    [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, True)],
    ids=["SIGTERM", "SIGINT", "Ctrl-C to the whole terminal group", "kill %1 to the whole group"],
)
def test_a_signal_lets_the_batch_in_flight_finish_and_ends_with_0(running, tmp_path, number, everyone):
    run = running(seconds=0.02)
    run.wait_for(lambda: '"BatchDone"' in run.out)
    os.killpg(run.process.pid, number) if everyone else run.process.send_signal(number)
    done = run.finish()
    assert done.code == 0, (done.out, done.err)
    named = [event["event"] for event in done.events]
    assert named[-1] == "RunStopped"
    assert [event["reason"] for event in done.events if event["event"] == "Stopping"] == [number.name]
    assert done.events[-1]["error"] is None
    assert "Retrying" not in named
    assert named.count("BatchStarted") == named.count("BatchDone") == done.events[-1]["batches"]
    found = stored(tmp_path)
    assert 0 < len(found) == len(set(found)) == done.events[-1]["records"] < 2000
    assert committed(tmp_path) == len(found)
    assert done.err == ""
    assert run.nothing_is_left()


def test_a_sigterm_to_every_process_as_systemd_sends_it_loses_nothing_of_at_most_once(running, tmp_path):
    run = running(seconds=0.02, delivery="at_most_once()")
    run.wait_for(lambda: '"BatchDone"' in run.out)
    run.wait_for(lambda: len(run.processes()) >= 4)  # driver, JVM, the workers' daemon, a worker
    for process in run.processes():
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    done = run.finish()
    assert (done.code, done.err) == (0, ""), (done.out, done.err)
    assert "Retrying" not in [event["event"] for event in done.events]
    rows = duckdb.sql(f"SELECT id FROM '{tmp_path}/rows/**/*.parquet'").fetchall()
    with sqlite3.connect(tmp_path / "offsets.db") as offsets:
        (moved,) = offsets.execute("SELECT sum(next_offset) FROM headrace_offsets").fetchone()
    assert 0 < len(set(rows)) == len(rows) == moved == done.events[-1]["records"] < 2000
    assert run.nothing_is_left()


def test_nothing_outlives_a_driver_that_was_killed(running):
    run = running(seconds=600)
    assert len(run.processes()) >= 4
    run.process.kill()
    run.process.wait(SOON)
    assert run.nothing_is_left()


@pytest.mark.parametrize(
    ("verb", "words", "number", "code"),
    [
        ("run", "spark-class", signal.SIGINT, 130),
        ("run", "-Xmx", signal.SIGINT, 130),
        ("run", "-Xmx", signal.SIGTERM, 0),
        ("check", "-Xmx", signal.SIGINT, 130),
    ],
    ids=["Ctrl-C in the script", "Ctrl-C in Java", "kill %1 in Java", "Ctrl-C while check starts it"],
)
def test_a_signal_while_spark_starts_leaves_at_once_and_no_jvm(topic, tmp_path, verb, words, number, code):
    where = topic(partitions=1)
    values = {"bootstrap": where.bootstrap, "topic": where.name, "delivery": "to_duckdb(sinks.DuckDB)"}
    (tmp_path / "app.py").write_text(textwrap.dedent(APP).format(seconds=0, **values))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh").write_text("sleep 5\n")  # or the script is over before it is seen
    slow = {"SPARK_CONF_DIR": str(tmp_path / "conf")} if words == "spark-class" else {}
    with HeadraceProcess(verb, "app.py:clicks", cwd=tmp_path, **slow) as run:
        run.wait_for(lambda: any(words in line for line in run.command_lines()))
        os.killpg(run.process.pid, number)
        done = run.finish(AT_ONCE)
        assert (done.code, done.out) == (code, "")
        assert done.err == (
            "" if verb == "run" else "starting Spark to check the schema, the transform and the table …\n"
        )
        assert run.nothing_is_left(5)


@pytest.mark.parametrize("sink", ["sinks.DuckDB", "Stuck"], ids=["on the workers", "in the sink"])
def test_a_batch_that_outlasts_the_deadline_is_abandoned_and_nothing_of_it_is_stored(running, tmp_path, sink):
    run = running("--drain", "1", seconds=600, delivery=f"to_duckdb({sink})")
    run.process.send_signal(signal.SIGTERM)
    done = run.finish(30)
    assert done.code == 1
    assert "was not finished 1 s after the stop" in done.line("error: ")
    assert "--drain" in done.line("hint: ")
    assert stored(tmp_path) == []
    assert committed(tmp_path) == 0
    assert run.nothing_is_left()


def test_a_second_signal_leaves_at_once(running, tmp_path):
    run = running(seconds=600)
    _send_until_gone(run, signal.SIGINT)
    assert run.finish().code == 130
    assert run.nothing_is_left()
    assert stored(tmp_path) == []


def _send_until_gone(run, number):
    """Two signals of one kind that arrive together are one to the kernel."""
    deadline = time.monotonic() + SOON
    while run.process.poll() is None and time.monotonic() < deadline:
        run.process.send_signal(number)
        time.sleep(0.05)
