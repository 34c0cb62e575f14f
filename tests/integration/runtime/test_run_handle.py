"""Runs that other programs hold: several in one session, stopped apart, and nothing left of them."""

import asyncio
import gc
import re
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType

import headrace as hr
from headrace import events, sinks, stores
from headrace.errors import ConfigError, HeadraceError, OffsetConflict
from support.project import ROOT

SOON = 120.0
COUNT = 20


def until(condition, what):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


@pytest.fixture
def made(topic, tmp_path):
    """Make a pipeline over a topic of its own, whose batches of 20 records begin and then wait for a file `go-NAME`."""

    def make(name, records=COUNT, **more):
        where = topic(partitions=1)
        where.produce([{"id": number} for number in range(records)])
        begun, go = tmp_path / f"begun-{name}", tmp_path / f"go-{name}"

        @udf(LongType())
        def when_told(number):
            begun.touch()
            while not go.exists():
                time.sleep(0.02)
            return number

        return hr.Pipeline(
            name=name,
            **{
                "source": hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT")),
                "transform": lambda rows: rows.select(when_told("id").alias("id")),
                "sink": sinks.DuckDB(tmp_path / f"{name}.duckdb", table="t"),
                "guarantee": "exactly-once",
                "limits": hr.Limits(max_records=COUNT),
                **more,
            },
        )

    return make


@pytest.fixture
def stored(tmp_path):
    def ids(name):
        with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as connection:
            return [number for (number,) in connection.execute("SELECT id FROM t ORDER BY id").fetchall()]

    return ids


def own_threads():
    """Those of runs: the JVM and the broker of the tests have some, too."""
    others = ("headrace-jvm", "headrace-dev")
    names = [thread.name for thread in threading.enumerate()]
    return {name for name in names if name.startswith("headrace-") and not name.startswith(others)}


def client_threads():
    """Of librdkafka, which Python does not know. Clients of other tests end when Python collects them."""
    gc.collect()
    return sum(
        (task / "comm").read_text().startswith("rdk:") for task in Path("/proc/self/task").iterdir() if task.exists()
    )


def all_of(kind, seen):
    return [event for event in seen if isinstance(event, kind)]


def test_of_two_runs_in_one_session_one_is_cut_off_and_the_other_goes_on(spark, made, stored, tmp_path):
    rows = tmp_path / "rows"
    clicks = made("clicks", sink=sinks.Parquet(rows), offsets=stores.SQLite(tmp_path / "o.db"))
    orders = made("orders")
    of_clicks, of_orders, before = [], [], client_threads()
    first = clicks.start(session=spark, observer=of_clicks.append)
    second = orders.start(session=spark, observer=of_orders.append)
    until((tmp_path / "begun-clicks").exists, "a batch of clicks")
    until((tmp_path / "begun-orders").exists, "a batch of orders")
    assert first.wait(0.01) is None

    first.stop(drain=False)
    assert first.wait(SOON).batches == 0
    assert (first.status.state, first.status.error) == ("stopped", None)
    assert (second.status.state, second.status.batch.id, second.status.batches) == ("running", 1, 0)

    (tmp_path / "go-orders").touch()
    until(lambda: second.status.batches == 1, "the batch of orders")
    second.stop()
    assert second.wait(SOON).records == COUNT
    assert stored("orders") == list(range(COUNT))
    for seen in (of_clicks, of_orders):
        assert all_of(events.Retrying, seen) == []
        assert all_of(events.RunStopped, seen)[0].error is None
    assert own_threads() == set()
    assert client_threads() <= before

    (tmp_path / "go-clicks").touch()
    again = []
    assert clicks.run(until="caught-up", session=spark, observer=again.append).batches == 1
    assert [(event.batch, event.replay) for event in all_of(events.BatchStarted, again)] == [
        (all_of(events.BatchStarted, of_clicks)[0].batch, True)
    ]
    ids = duckdb.sql(f"SELECT id FROM '{rows}/**/*.parquet' ORDER BY id").fetchall()
    assert [number for (number,) in ids] == list(range(COUNT))
    assert spark.range(3).count() == 3, "the session is the user's"


def test_a_batch_that_outlasts_the_drain_of_one_run_is_an_error_of_that_run_alone(spark, made, stored, tmp_path):
    clicks, orders = made("clicks"), made("orders")
    (tmp_path / "go-orders").touch()
    with orders.start(session=spark) as other:
        with (
            pytest.raises(HeadraceError, match="was not finished 1 s after the stop"),
            clicks.start(session=spark) as run,
        ):
            until((tmp_path / "begun-clicks").exists, "a batch of clicks")
            run.stop(drain="1s")
        until(lambda: other.status.records == COUNT, "the records of orders")
        assert (run.status.state, other.status.state) == ("failed", "running")
    (tmp_path / "go-clicks").touch()
    clicks.run(until="caught-up", session=spark)
    assert (stored("clicks"), stored("orders")) == (list(range(COUNT)), list(range(COUNT)))


def test_a_thread_stops_a_run_that_another_one_waits_for(spark, made, stored, tmp_path):
    clicks = made("clicks", records=3 * COUNT)
    with clicks.start(session=spark) as run:
        until((tmp_path / "begun-clicks").exists, "a batch")
        assert run.status.state == "running"
        with pytest.raises(OffsetConflict, match="clicks is running already in this process"):
            clicks.start(session=spark)

        def stop_and_let_the_batch_finish():
            run.stop(reason="maintenance")
            assert run.status.state == "stopping"
            (tmp_path / "go-clicks").touch()

        stopping = threading.Thread(target=stop_and_let_the_batch_finish)
        stopping.start()
        assert run.wait().batches == 1
        stopping.join(SOON)
    assert stored("clicks") == list(range(COUNT))


def test_another_pipeline_object_of_a_running_pipeline_is_refused_at_its_start(spark, made, tmp_path):
    def pipeline():
        return made("clicks", offsets=stores.SQLite(tmp_path / "o.db"), sink=sinks.Parquet(tmp_path / "rows"))

    with pipeline().start(session=spark) as run:
        until((tmp_path / "begun-clicks").exists, "a batch")
        with pytest.raises(OffsetConflict, match="clicks is running already: pid"):
            pipeline().start(session=spark)
        (tmp_path / "go-clicks").touch()
        run.stop()
        assert run.wait(SOON).batches == 1


@pytest.mark.parametrize("fault", ["transform", "topic"])
def test_a_run_that_fails_raises_in_wait_and_leaves_nothing(spark, made, tmp_path, fault):
    more = {
        "transform": {"transform": lambda rows: rows.select("no_such_column")},
        "topic": {"source": replace(made("other").source, topics=(f"missing-{time.time_ns()}",))},
    }[fault]
    more |= {"offsets": stores.SQLite(tmp_path / "o.db"), "sink": sinks.Parquet(tmp_path / "rows")}
    more["mirror_group"] = f"shown-{time.time_ns()}"
    pipeline = made("clicks", **more)
    before = client_threads()
    run = pipeline.start(session=spark)
    with pytest.raises(ConfigError, match=r"no_such_column|no topic missing") as failed:
        run.wait(SOON)
    assert (run.status.state, run.status.error) == ("failed", failed.value)
    assert own_threads() == set()
    assert client_threads() <= before
    assert stores.SQLite(tmp_path / "o.db").open("clicks").lease() is None
    assert spark.range(3).count() == 3


def test_a_run_inherits_what_the_thread_that_starts_it_has_set(spark, made, stored, tmp_path):
    (tmp_path / "go-clicks").touch()
    seen = []

    def transform(rows):
        context = rows.sparkSession.sparkContext
        tags = [tag for tag in context.getJobTags() if tag.startswith("headrace-run-")]
        active = SparkSession.getActiveSession()
        seen.append((context.getLocalProperty("spark.scheduler.pool"), len(tags), active is not None))
        return rows

    clicks = made("clicks", transform=transform)
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "events")
    try:
        assert clicks.run(until="caught-up", session=spark).records == COUNT
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)
    assert set(seen) == {("events", 1, True)}
    assert not [tag for tag in context.getJobTags() if tag.startswith("headrace-")]


def test_a_process_that_ends_without_a_stop_finishes_its_batch_first(topic, tmp_path):
    where = topic(partitions=1)
    where.produce([{"id": number} for number in range(COUNT)])
    script = f"""
        import time
        from pathlib import Path
        import headrace as hr
        from headrace import sinks
        from pyspark.sql.functions import udf
        from pyspark.sql.types import LongType

        def main():
            begun = Path("begun")

            @udf(LongType())
            def slowly(number):
                begun.touch()
                time.sleep(0.1)
                return number

            clicks = hr.Pipeline(
                name="clicks",
                source=hr.Kafka("{where.bootstrap}", topics=["{where.name}"], format=hr.Json("id BIGINT")),
                transform=lambda rows: rows.select(slowly("id").alias("id")),
                sink=sinks.DuckDB("x.duckdb", table="t"),
                guarantee="exactly-once",
            )
            run = clicks.start()
            while not begun.exists():
                run.wait(0.02)

        main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (COUNT,)
        assert connection.execute("SELECT sum(next_offset) FROM headrace_offsets").fetchone() == (COUNT,)


# the page


PAGE = ROOT / "docs" / "embedding.md"


class Service:
    """As much of FastAPI as the page uses."""

    def __init__(self, lifespan):
        self.lifespan, self.state = lifespan, SimpleNamespace()

    def get(self, path):
        return lambda handler: handler


def modules(**members):
    """Modules of this test, by their dotted names."""
    made = {}
    for path, names in members.items():
        name = path.replace("__", ".")
        made[name] = ModuleType(name)
        vars(made[name]).update(names)
    return made


def test_the_page_does_what_it_shows(spark, made, stored, tmp_path, monkeypatch):
    for name in ("clicks", "orders"):
        (tmp_path / f"go-{name}").touch()
    clicks, orders = made("clicks", records=3 * COUNT), made("orders")
    known = modules(
        app={"clicks": clicks, "orders": orders},
        fastapi={"FastAPI": Service, "Response": SimpleNamespace},
        airflow={},
        airflow__sdk={"task": lambda **_: lambda function: function},
        dagster={"asset": lambda function: function, "MaterializeResult": SimpleNamespace},
    )
    for name, module in known.items():
        monkeypatch.setitem(sys.modules, name, module)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    handle, several, web, airflow, dagster, begin, look, end = (compile(block, PAGE.name, "exec") for block in blocks)

    exec(handle, {})
    exec(several, {})
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)

    page = {}
    exec(web, page)

    async def serve():
        response, service = SimpleNamespace(status_code=200), page["service"]
        async with service.lifespan(service):
            while (answer := page["health"](response))["state"] == "starting":
                await asyncio.sleep(0.02)
            assert (answer["state"], answer["error"], response.status_code) == ("running", None, 200)
        assert page["health"](response)["state"] == "stopped"
        assert response.status_code == 503

    asyncio.run(serve())

    page = {}
    exec(airflow, page)
    assert page["load_clicks"]() >= 0
    assert stored("clicks") == list(range(3 * COUNT))
    exec(dagster, page)
    assert page["clicks_table"]().metadata == {"records": 0, "batches": 0}

    page = {}
    exec(begin, page)
    exec(look, page)
    exec(end, page)
    assert page["run"].status.state == "stopped"
    assert own_threads() == set()
