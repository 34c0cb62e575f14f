"""The example with alarms: a model that is read anew, a start at what comes now, nothing old."""

import json
import runpy
from dataclasses import replace

import headrace as hr
from headrace import events, sinks, stores
from headrace.testing.fixtures import Topic
from headrace.tools import samples
from support.background_run import BackgroundRun
from support.project import ROOT

EXAMPLE = ROOT / "examples" / "anomalies"


def test_alarms_are_of_what_comes_now_and_follow_the_newest_model(kafka, spark, tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("ANOMALIES_MODEL", str(tmp_path / "model.json"))
    trades = Topic(kafka.bootstrap, "trades", 2, {})
    made = samples.trades(1, samples.as_they_come())
    trades.produce([next(made).value for _ in range(500)])
    trades.produce([{"ticker": "ACME", "ask_price": 10.0, "ask_size": 1}])
    trades.produce([{"ticker": "ACME", "ask_size": 1}, {"ticker": "NEW", "ask_size": 3}])  # without a price
    runpy.run_path(str(EXAMPLE / "model.py"), run_name="__main__")
    model = [json.loads(line) for line in (tmp_path / "model.json").read_text().splitlines()]
    assert len(model) == 11
    assert {"ticker": "ACME", "usual": 10.0} in model

    example = runpy.run_path(str(EXAMPLE / "app.py"))["anomalies"]
    sink = sinks.Memory()
    alarms = replace(example, sink=sink, offsets=stores.Memory(), limits=hr.Limits())
    with BackgroundRun(alarms, spark) as live:
        live.wait(lambda: live.all(events.CaughtUp))
        trades.produce([{"ticker": "ACME", "ask_price": price, "ask_size": 1} for price in (10.5, 30.0)])
        live.wait(lambda: sink.rows)
        (tmp_path / "model.json").write_text('{"ticker": "ACME", "usual": 30.0}\n')
        trades.produce([{"ticker": "ACME", "ask_price": price, "ask_size": 1} for price in (10.0, 30.5)])
        live.wait(lambda: len(sink.rows) > 1)
    assert [row["ask_price"] for row in sink.rows] == [30.0, 10.0]
