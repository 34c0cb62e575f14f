"""The example with alarms: a model that is read anew, a start at what comes now, nothing old."""

import runpy
import threading
import time
from dataclasses import replace
from pathlib import Path

import headrace as hr
from headrace import events, samples, sinks, stores
from headrace.launch import connected
from headrace.runner import Runner
from headrace.spark.engine import DirectEngine
from headrace.testing.fixtures import Topic

EXAMPLE = Path(__file__).parents[2] / "examples" / "anomalies"
SOON = 60.0


def test_alarms_are_of_what_comes_now_and_follow_the_newest_model(kafka, spark, tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("ANOMALIES_MODEL", str(tmp_path / "model.json"))
    trades = Topic(kafka.bootstrap, "trades", 2, {})
    made = samples.trades(1, samples.as_they_come())
    trades.produce([next(made).value for _ in range(500)])
    trades.produce([{"ticker": "ACME", "ask_price": 10.0, "ask_size": 1}])
    runpy.run_path(str(EXAMPLE / "model.py"), run_name="__main__")
    assert len((tmp_path / "model.json").read_text().splitlines()) == 11

    example = runpy.run_path(str(EXAMPLE / "app.py"))["anomalies"]
    sink, seen = sinks.Memory(), []
    alarms = replace(example, sink=sink, offsets=stores.Memory(), limits=hr.Limits())
    runner = Runner(alarms, connected(alarms.sources), DirectEngine(spark, alarms), observer=seen.append)
    thread = threading.Thread(target=runner.run)
    thread.start()

    def wait(condition):
        deadline = time.monotonic() + SOON
        while not condition():
            assert time.monotonic() < deadline, seen[-3:]
            time.sleep(0.02)

    try:
        wait(lambda: any(isinstance(event, events.CaughtUp) for event in seen))
        trades.produce([{"ticker": "ACME", "ask_price": price, "ask_size": 1} for price in (10.5, 30.0)])
        wait(lambda: sink.rows)
        (tmp_path / "model.json").write_text('{"ticker": "ACME", "usual": 30.0}\n')
        trades.produce([{"ticker": "ACME", "ask_price": price, "ask_size": 1} for price in (10.0, 30.5)])
        wait(lambda: len(sink.rows) > 1)
    finally:
        runner.stop("test")
        thread.join(SOON)
    assert [row["ask_price"] for row in sink.rows] == [30.0, 10.0]
