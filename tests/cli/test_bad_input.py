"""What bad input gets: the thing and the cure by name, before anything is written, nothing lost."""

import os
import signal
import subprocess
import sys
import threading

import duckdb
import pytest

import headrace as hr
from headrace import events, sinks, stores
from headrace.dev import ports
from support.command_line import HeadraceProcess


def untouched(tmp_path):
    return not (tmp_path / "x.duckdb").exists() and not (tmp_path / "state").exists()


# known without Spark or Kafka

MISTAKES = {
    "an unknown guarantee": ({"guarantee": "exactly once"}, "guarantee: expected one of", "did you mean exactly-once?"),
    "a sink that cannot give it": ({"sink": "sinks.Console()"}, "Console cannot give exactly-once", "sinks.Postgres"),
    "a second store": ({"more": "offsets=stores.Memory(),"}, "keeps the offsets with the rows", "leave offsets="),
    "a file that is no Python": ({"format": "hr.Text(), topics='x'"}, "keyword argument repeated", None),
    "a limit of nothing": ({"more": "limits=hr.Limits(max_records=0),"}, "at least 1", "Limits(max_records="),
    "an owned option": (
        {"format": "hr.Text(), options={'group.id': 'x'}"},
        "the option group.id is set by Headrace: use derived from the pipeline's name",
        None,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_pipeline_is_named_with_its_cure(app, cli, tmp_path, name):
    changes, message, hint = MISTAKES[name]
    done = cli("run", f"{app(**changes)}:clicks")
    assert done.code == 2
    assert message in done.line("error: ")
    assert hint is None or hint in done.line("hint: ")
    assert done.out == ""
    assert untouched(tmp_path)


def test_a_file_that_is_not_there_is_named_with_where_was_looked(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("run", "clicks.toml")
    assert done.code == 2
    assert done.line("error: ") == f"no file clicks.toml; looked in {tmp_path}"
    assert "headrace run" in done.line("hint: ")


def test_toml_that_does_not_parse_is_named_with_file_and_line(cli, tmp_path):
    path = tmp_path / "clicks.toml"
    path.write_text('name = "clicks"\n[source\n')
    done = cli("check", path)
    assert done.code == 2
    assert str(path) in done.line("error: ")
    assert "line 2" in done.line("error: ")


def test_a_spark_option_without_a_value_is_wrong_use(app, cli):
    done = cli("run", app(), "--spark", "spark.driver.memory")
    assert done.code == 2
    assert "--spark: expected KEY=VALUE, got 'spark.driver.memory' without =" in done.line("error: ")


# known once Spark is there

PLANS = {
    "a schema that does not parse": ({"format": 'hr.Json("id BIGNT")'}, "the schema does not parse: 'id BIGNT'"),
    "a schema that is no list of columns": ({"format": 'hr.Json("INT")'}, "INT"),
    "an unknown column": ({"transform": 'return rows.select("idd")'}, "idd"),
    "a stateful transform": ({"transform": 'return rows.dropDuplicates(["id"])'}, "needs state across batches"),
    "a transform that returns nothing": ({"transform": "pass"}, "the transform returned NoneType"),
}


@pytest.mark.parametrize("verb", ["run", "check"])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_cannot_work_is_named_before_anything_is_written(spark, topic, app, cli, tmp_path, verb, name):
    changes, message = PLANS[name]
    where = topic(partitions=1)
    where.produce([{"id": 1}])
    extra = ["--until", "caught-up", "--fail-fast"] if verb == "run" else []
    done = cli(verb, f"{app(where, **changes)}:clicks", *extra)
    assert done.code == 2
    assert message in done.line("error: ")
    assert untouched(tmp_path)
    assert {line.partition(": ")[0] for line in done.err.splitlines()} <= {"error", "hint"}


# known once Kafka is there


def test_a_topic_that_is_not_there_is_answered_with_the_nearest(spark, topic, app, cli):
    where = topic(partitions=1)
    done = cli("run", app(where, topic=where.name + "x"), "--until", "caught-up")
    assert done.code == 2
    assert f"no topic {where.name}x on {where.bootstrap}" in done.line("error: ")
    assert done.line("hint: ") == f"did you mean {where.name}?"


def test_a_record_that_does_not_parse_ends_the_run_with_its_place_and_bytes(spark, topic, app, cli):
    where = topic(partitions=1)
    where.produce([{"id": 1}, b"oops"])
    done = cli("run", app(where), "--until", "caught-up")
    assert done.code == 1
    assert f"{where.name}[0] offset 1" in done.line("error: ")
    assert "b'oops'" in done.line("error: ")
    assert "on_error" in done.line("hint: ")


def test_a_broker_that_does_not_answer_is_asked_again_and_again_and_fail_fast_gives_up(spark, app, cli, tmp_path):
    (port,) = ports.free(1)
    broken = app(bootstrap=f"127.0.0.1:{port}")
    gave_up = cli("run", broken, "--fail-fast")
    with HeadraceProcess("run", broken, cwd=tmp_path) as run:
        run.wait_for(lambda: "retry 2 in " in run.out)
        run.process.send_signal(signal.SIGTERM)
        done = run.finish()
    assert f"Kafka at 127.0.0.1:{port} does not answer" in done.out
    assert "hint: headrace doctor" in done.out
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith("stopped after 0 batches, 0 records, 0 rows written")
    assert done.out.count("started: exactly-once") == 1
    assert gave_up.code == 1
    assert f"Kafka at 127.0.0.1:{port} does not answer" in gave_up.line("error: ")
    assert f"headrace doctor --bootstrap 127.0.0.1:{port}" in gave_up.line("hint: ")


# a transform that raises

RAISING = """@udf(LongType())
    def doubled(number):
        return number * 2 // (number - 7)

    return rows.withColumn("id", doubled("id"))"""


def line_of(path, text):
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_a_function_that_raises_on_a_worker_is_retried_and_shown_in_the_users_file(topic, app, tmp_path):
    where = topic(partitions=1)
    where.produce([{"id": number} for number in range(10)])
    path = app(where, transform=RAISING)
    with HeadraceProcess("run", path, cwd=tmp_path) as run:
        run.wait_for(lambda: "retry 2 in " in run.out)
        run.process.send_signal(signal.SIGTERM)
        done = run.finish()
    assert done.code == 0
    assert "ZeroDivisionError" in done.out
    assert f'{path}", line {line_of(path, "number - 7")}, in doubled' in done.out
    assert "pyspark/worker.py" not in done.out
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.mark.filterwarnings("ignore:Arrow optimization")
def test_a_function_that_raises_on_a_worker_is_shown_in_the_users_file_by_fail_fast(spark, topic, app, cli):
    where = topic(partitions=1)
    where.produce([{"id": number} for number in range(10)])
    path = app(where, transform=RAISING)
    done = cli("run", path, "--until", "caught-up", "--fail-fast")
    assert done.code == 1
    assert f'{path}", line {line_of(path, "number - 7")}, in doubled' in done.err
    assert "ZeroDivisionError" in done.line("error: ")
    assert "org.apache.spark" not in done.err


def test_a_transform_that_raises_itself_is_shown_in_the_users_file(spark, topic, app, cli):
    where = topic(partitions=1)
    where.produce([{"id": 1}])
    path = app(where, transform="return rows.where(1 / 0)")
    done = cli("run", path, "--until", "caught-up", "--fail-fast")
    assert done.code == 1
    assert f'{path}", line {line_of(path, "1 / 0")}, in transform' in done.err
    assert done.line("error: ").startswith("the transform raised ZeroDivisionError: division by zero")


# places that cannot be written


@pytest.mark.parametrize("sink", ['sinks.DuckDB("{place}/x.duckdb", table="t")', 'sinks.Parquet("{place}/out")'])
def test_a_place_that_cannot_be_written_is_named_and_ends_the_run(spark, topic, app, cli, tmp_path, sink):
    where = topic(partitions=1)
    where.produce([{"id": 1}])
    place = tmp_path / "file"
    place.write_text("not a directory")
    done = cli("run", app(where, sink=sink.format(place=place)), "--until", "caught-up")
    assert done.code == 2
    assert str(place) in done.line("error: ")
    assert done.line("hint: ")


@pytest.mark.parametrize("state", ["/proc/headrace", "{file}/state"])
def test_a_state_directory_that_cannot_be_written_is_named_and_ends_the_run(
    spark,
    topic,
    app,
    cli,
    tmp_path,
    monkeypatch,
    state,
):
    where = topic(partitions=1)
    where.produce([{"id": 1}])
    (tmp_path / "file").write_text("not a directory")
    path = app(where, sink=f'sinks.Parquet("{tmp_path}/out")')
    monkeypatch.setenv("HEADRACE_STATE", state.format(file=tmp_path / "file"))
    done = cli("run", path, "--until", "caught-up")
    assert done.code == 2
    assert "offsets cannot be kept in" in done.line("error: ")
    assert "HEADRACE_STATE" in done.line("hint: ")
    assert not list((tmp_path / "out").glob("headrace_batch=*"))


def test_a_driver_that_is_not_installed_is_named_with_its_extra(spark, topic, app, cli, monkeypatch):
    where = topic(partitions=1)
    path = app(where)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = cli("run", path, "--until", "caught-up", "--fail-fast")
    assert done.code != 0
    assert "pip install 'headrace[duckdb]'" in done.err


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this user may not mount a file system: {tried.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("kind", ["duckdb", "parquet"])
def test_a_disk_that_was_full_and_is_cleared_costs_nothing(spark, topic, small_disk, kind):
    where = topic(partitions=1)
    where.produce([{"id": number, "text": os.urandom(1500).hex()} for number in range(1000)])
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (5 << 20))
    seen, cleared = [], threading.Event()

    def clear(event):
        seen.append(event)
        if isinstance(event, events.Retrying):
            ballast.unlink(missing_ok=True)
            cleared.set()

    sink = sinks.DuckDB(small_disk / "x.duckdb", table="t") if kind == "duckdb" else sinks.Parquet(small_disk / "out")
    hr.Pipeline(
        name="clicks",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT, text STRING")),
        transform=lambda rows: rows.select("id", "text"),
        sink=sink,
        guarantee="exactly-once",
        offsets=None if kind == "duckdb" else stores.Memory(),
    ).run(until="caught-up", session=spark, observer=clear)
    assert cleared.is_set()
    assert "No space left" in str(next(event.error for event in seen if isinstance(event, events.Retrying)))
    if kind == "duckdb":
        with duckdb.connect(str(small_disk / "x.duckdb")) as connection:
            found = [number for (number,) in connection.execute("SELECT id FROM t").fetchall()]
    else:
        found = [row["id"] for row in spark.read.parquet(str(small_disk / "out")).collect()]
    assert sorted(found) == list(range(1000))
