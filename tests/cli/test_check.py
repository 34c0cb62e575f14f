"""`headrace check` tells the truth: what keeps a pipeline from running is found, and nothing is changed by looking."""

import json
import sqlite3
import sys
import urllib.request
import uuid

import duckdb
import pytest

from headrace.dev import ports
from headrace.spark import session
from support.avro_bytes import registered


@pytest.fixture
def no_spark(monkeypatch):
    """Spark must not be started."""

    def create(*_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "create", create)


@pytest.fixture
def where(topic):
    made = topic(partitions=1)
    made.produce([{"id": 1}])
    return made


def test_a_topic_that_is_not_there_is_found_without_spark(no_spark, where, app, cli, tmp_path):
    done = cli("check", app(where, topic=where.name + "x"))
    assert done.code == 2
    assert f"no topic {where.name}x on {where.bootstrap}" in done.line("error: ")
    assert done.line("hint: ") == f"did you mean {where.name}?"
    assert not (tmp_path / "state").exists()


def test_a_topic_for_dead_letters_that_is_not_there_is_found_without_spark(no_spark, where, app, cli):
    done = cli("check", app(where, more=f'dead_letters=hr.DeadLetters(topic="{uuid.uuid4().hex}"),'))
    assert done.code == 2
    assert "dead letters: there is no topic" in done.line("error: ")
    assert "headrace topics create" in done.line("hint: ")


def test_a_broker_that_does_not_answer_is_found_without_spark(no_spark, app, cli):
    (port,) = ports.free(1)
    done = cli("check", app(bootstrap=f"127.0.0.1:{port}"), "--json")
    assert done.code == 2
    (error,) = json.loads(done.out)["errors"]
    assert f"Kafka at 127.0.0.1:{port} does not answer" in error["message"]


def test_a_store_that_does_not_answer_is_found_without_spark(no_spark, where, app, cli, tmp_path):
    (port,) = ports.free(1)
    store = f'offsets=stores.Postgres("postgresql://u@127.0.0.1:{port}/app"),'
    done = cli("check", app(where, sink=f'sinks.Parquet("{tmp_path}/out")', more=store))
    assert done.code == 2
    assert "stores.Postgres" in done.line("error: ")


def test_a_target_topic_that_is_misspelt_is_found_without_spark(no_spark, where, topic, app, cli):
    target = topic(partitions=1)
    done = cli("check", app(where, sink=f'sinks.Kafka("{where.bootstrap}", "{target.name}x")'))
    assert done.code == 2
    assert f"there is no topic {target.name}x on {where.bootstrap}" in done.line("error: ")
    assert done.line("hint: ").startswith(f"did you mean {target.name}? Else create=True")


def test_a_driver_that_is_not_installed_is_found_without_spark(no_spark, where, app, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = cli("check", app(where))
    assert done.code == 2
    assert "duckdb is not installed" in done.line("error: ")
    assert "pip install 'headrace[duckdb]'" in done.line("error: ")


def test_a_table_of_duckdb_that_does_not_fit_is_found_and_left_as_it_is(spark, where, app, cli, tmp_path):
    path = tmp_path / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id BIGINT, name VARCHAR NOT NULL)")
    before = path.read_bytes()
    done = cli("check", app(where))
    assert done.code == 2
    assert "the table has no column at" in done.line("error: ")
    assert "name, which the table requires" in done.line("error: ")
    assert path.read_bytes() == before
    assert sorted(child.name for child in tmp_path.iterdir()) == ["app.py", "x.duckdb"]


def test_a_table_of_sqlite_that_does_not_fit_is_found_and_left_as_it_is(spark, where, app, cli, tmp_path):
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    lacking = cli("check", app(where, sink=f'sinks.SQLite("{path}", table="t")'))
    assert lacking.code == 2
    assert "the table has no column at" in lacking.line("error: ")
    assert "evolve=True adds them" in lacking.line("hint: ")
    evolving = cli("check", app(where, sink=f'sinks.SQLite("{path}", table="t", evolve=True)'))
    assert evolving.code == 0, evolving.err
    assert path.read_bytes() == before
    assert sorted(child.name for child in tmp_path.iterdir()) == ["app.py", "x.db"]


def test_a_table_of_postgres_that_does_not_fit_is_found_and_nothing_is_created(spark, where, app, cli, postgres):
    psycopg = pytest.importorskip("psycopg")
    name = f"t_{uuid.uuid4().hex[:8]}"
    sink = f'sinks.Postgres("{postgres.dsn}", "{name}", create={{}})'
    absent = cli("check", app(where, sink=sink.format(False)))
    assert absent.code == 2
    assert "there is no such table" in absent.line("error: ")
    would_be_made = cli("check", app(where, sink=sink.format(True)))
    assert would_be_made.code == 0, would_be_made.err
    with psycopg.connect(postgres.dsn) as connection:
        assert connection.execute("SELECT to_regclass(%s)", [name]).fetchall() == [(None,)]
        connection.execute(f"CREATE TABLE {name} (id BIGINT, at BOOLEAN)")
    unfit = cli("check", app(where, sink=sink.format(False)))
    assert unfit.code == 2
    assert "the rows do not fit" in unfit.line("error: ")


def test_a_table_of_delta_that_does_not_fit_is_found_and_nothing_is_created(spark, where, app, cli, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    sink = f'sinks.Delta("{tmp_path}/out")'
    assert cli("check", app(where, sink=sink)).code == 0
    assert not (tmp_path / "out").exists()
    schema = {"type": "struct", "fields": [{"name": "id", "type": "string", "nullable": True, "metadata": {}}]}
    deltalake.DeltaTable.create(f"{tmp_path}/out", deltalake.Schema.from_json(json.dumps(schema)))
    done = cli("check", app(where, sink=sink))
    assert done.code == 2
    assert "id" in done.line("error: ")


RAISES = {
    "a name that is not there": ("return rowz", "the transform raised NameError: name 'rowz' is not defined"),
    "a module that is not there": ("import no_such_module", "the transform raised ModuleNotFoundError"),
    "a wrong call": ("return rows.where()", "the transform raised TypeError"),
    "a method that is not there": ("return rows.wear('id > 1')", "the transform raised PySparkAttributeError"),
    "a column that is not there": ('return rows.select("idd")', "the transform does not fit the rows"),
}


@pytest.mark.parametrize("name", RAISES)
def test_a_transform_that_cannot_run_is_named_with_its_error_and_line(spark, where, app, cli, monkeypatch, name):
    body, message = RAISES[name]
    path = app(where, transform=body)
    monkeypatch.chdir(path.parent)
    done = cli("check", path)
    assert done.code == 2
    assert message in done.line("error: ")
    assert "at app.py:8" in done.line("error: ")


def test_what_a_transform_raises_for_want_of_rows_is_a_note(spark, where, app, cli):
    path = app(where, transform='return rows.where(f"id > {rows.first()[0]}")')
    done = cli("check", path)
    assert done.code == 0
    (note,) = [line for line in done.out.splitlines() if "  note " in line]
    assert "the transform raised TypeError: 'NoneType' object is not subscriptable at" in note
    assert "app.py:8, on no rows" in note


def test_a_transform_with_two_arguments_is_refused_with_its_line(no_spark, app, cli):
    path = app(more="dead_letters=None,")
    path.write_text(path.read_text().replace("def transform(rows):", "def transform(rows, day):"))
    done = cli("check", path)
    assert done.code == 2
    assert "the transform transform(rows, day) at" in done.line("error: ")
    assert "app.py:7: expected one argument, the rows" in done.line("error: ")


def test_what_sees_one_batch_only_is_noted(spark, where, app, cli):
    done = cli("check", app(where, transform='return rows.groupBy("id").count()'))
    assert done.code == 0
    assert "note     groupBy, agg or distinct sees one batch only" in done.out


def test_a_partition_column_of_the_clock_is_refused_and_noted_where_it_may_be(spark, where, app, cli, tmp_path):
    from_clock = 'return rows.selectExpr("id", "current_date() AS day", "_kafka")'
    sink = f'sinks.Parquet("{tmp_path}/out", partition_by="day")'
    done = cli("check", app(where, transform=from_clock, sink=sink))
    assert done.code == 2
    assert "current_date() gives column day another value each time a batch is read" in done.line("error: ")
    assert "_kafka.timestamp" in done.line("hint: ")
    ran = cli("run", app(where, transform=from_clock, sink=sink), "--until", "caught-up", "--fail-fast")
    assert ran.code == 2
    assert "current_date()" in ran.line("error: ")
    allowed = cli("check", app(where, transform=from_clock, sink=sink, guarantee="at-least-once"))
    assert allowed.code == 0
    assert "note     column day has another value each time a batch is read: current_date()" in allowed.out


def test_a_schema_of_the_registry_that_cannot_be_used_is_found(spark, where, app, cli, schema_registry):
    tree = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    registered(schema_registry.url, f"{where.name}-value", tree)
    done = cli("check", app(where, format=f'hr.Avro(registry="{schema_registry.url}")'))
    assert done.code == 2
    assert "Spark has no type for this Avro schema" in done.line("error: ")
    (port,) = ports.free(1)
    away = cli("check", app(where, format=f'hr.Avro(registry="http://127.0.0.1:{port}")'))
    assert away.code == 2
    assert f"127.0.0.1:{port}" in away.line("error: ")


def test_a_schema_to_write_by_is_tried_and_not_registered(spark, where, topic, app, cli, schema_registry):
    target, url = topic(partitions=1), schema_registry.url
    file = app(where, sink=f'sinks.Kafka("{where.bootstrap}", "{target.name}", format=hr.Avro(registry="{url}"))')
    done = cli("check", file)
    assert done.code == 0, done.err
    with urllib.request.urlopen(f"{url}/subjects", timeout=20) as answer:
        assert f"{target.name}-value" not in json.load(answer)
    registered(
        url, f"{target.name}-value", {"type": "record", "name": "Other", "fields": [{"name": "x", "type": "int"}]}
    )
    done = cli("check", file)
    assert done.code == 2
    assert f"rejects the schema for {target.name}-value as incompatible" in done.line("error: ")
