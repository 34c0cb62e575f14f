"""What `check` asks before Spark starts: no server and no Spark here."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import headrace as hr
from headrace import sinks, stores
from headrace.connectors.jdbc.connection import Database
from headrace.connectors.kafka import sink as kafka
from headrace.connectors.kafka.records import RecordMapping
from headrace.connectors.kafka.sink_offsets import SinkOffsets
from headrace.connectors.zookeeper import offset_store
from headrace.dev import ports
from headrace.errors import ConfigError, RetriableError
from headrace.kafka.cluster import Cluster
from headrace.spark import session, task_retries
from headrace.tools import check as checking


class Brokers(Cluster):
    """A cluster that has these topics."""

    def __init__(self, *topics, makes=False):
        super().__init__("localhost:1", {})
        self.makes = makes
        self._admin.topics = lambda: dict.fromkeys(topics, 1)
        self._admin.describe_topics = lambda names: {name: None for name in names if name in topics}

    def _creates_topics(self):
        return self.makes

    def led_logs(self, subscription):
        return dict.fromkeys(subscription.names)

    def max_message_bytes(self, subscription):
        return {}


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """Check a pipeline as far as it goes without Spark, which is never reached."""
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))

    def run(*, brokers=None, reaches_spark=False, **changes):
        asked = []
        monkeypatch.setattr(checking, "Cluster", SimpleNamespace(of=lambda source: brokers or Brokers("clicks")))
        monkeypatch.setattr(checking, "check_transform", lambda *_: asked.append("Spark"))
        arguments = {
            "name": "clicks",
            "source": hr.Kafka("localhost:1", topics=["clicks"]),
            "sink": sinks.Memory(),
            "guarantee": "at-least-once",
        }
        report = checking.check(hr.Pipeline(**{**arguments, **changes}), {})
        assert asked == (["Spark"] if reaches_spark else [])
        return report

    return run


def test_a_topic_for_dead_letters_that_is_not_there_is_an_error_with_the_command_that_makes_it(checked):
    (error,) = checked(dead_letters=hr.DeadLetters(topic="clicks-dead")).errors
    assert error.message == "dead letters: there is no topic clicks-dead on localhost:1"
    assert error.hint == "headrace topics create clicks-dead --bootstrap localhost:1"


def test_the_name_of_a_topic_for_dead_letters_that_was_meant_is_reported(checked):
    brokers = Brokers("clicks", "clicks-dead")
    (error,) = checked(brokers=brokers, dead_letters=hr.DeadLetters(topic="click-dead")).errors
    assert error.hint.startswith("did you mean clicks-dead? Else headrace topics create click-dead")


def test_a_topic_for_dead_letters_that_is_there_is_no_matter(checked):
    brokers = Brokers("clicks", "clicks-dead")
    report = checked(brokers=brokers, reaches_spark=True, dead_letters=hr.DeadLetters(topic="clicks-dead"))
    assert report.errors == report.notes == ()


def test_a_topic_for_dead_letters_that_brokers_create_is_noted(checked):
    brokers = Brokers("clicks", makes=True)
    report = checked(brokers=brokers, reaches_spark=True, dead_letters=hr.DeadLetters(topic="clicks-dead"))
    assert report.errors == ()
    (note,) = report.notes
    assert note.startswith("dead letters: clicks-dead does not exist; brokers create it with the first record")


@pytest.mark.parametrize(
    ("sink", "table"),
    [
        (sinks.DuckDB("x.duckdb", table="clicks"), "CLICKS"),
        (sinks.SQLite("x.db", table="main.clicks"), "clicks"),
        (sinks.Postgres("postgresql://u@h/d", "clicks"), "public.clicks"),
    ],
    ids=str,
)
def test_dead_letters_do_not_go_to_the_table_of_the_rows(sink, table):
    with pytest.raises(ConfigError, match=f"got {table}, where the rows go") as refused:
        hr.Pipeline(
            name="clicks",
            source=hr.Kafka("localhost:1", topics=["clicks"]),
            sink=sink,
            guarantee="exactly-once",
            dead_letters=table,
        )
    assert refused.value.hint == f'dead_letters="{table}_dead"'


def test_a_table_of_another_schema_takes_dead_letters():
    assert not sinks.Postgres("postgresql://u@h/d", "clicks").is_row_table("dead.clicks")


# The store


@pytest.mark.parametrize("kind", [stores.ZooKeeper, stores.HBase])
def test_a_store_at_a_closed_port_is_an_error(checked, monkeypatch, kind):
    monkeypatch.setattr(offset_store, "_TIMEOUT", 0.3)
    (port,) = ports.free(1)
    (error,) = checked(offsets=kind(f"127.0.0.1:{port}")).errors
    assert f"127.0.0.1:{port}" in error.message


@pytest.mark.parametrize("kind", [stores.SQLite, stores.DuckDB])
def test_a_store_in_a_file_that_is_no_database_is_an_error_and_the_file_is_left_as_it_is(checked, tmp_path, kind):
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 1000)
    (error,) = checked(offsets=kind(path)).errors
    assert str(path) in error.message
    assert "move" in error.hint
    assert path.read_text() == "remember the milk\n" * 1000
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("kind", [stores.SQLite, stores.DuckDB])
def test_a_store_below_a_plain_file_is_an_error(checked, tmp_path, kind):
    (tmp_path / "file").touch()
    (error,) = checked(offsets=kind(tmp_path / "file" / "deeper" / "offsets.db")).errors
    assert error.message.endswith(f"{tmp_path}/file is not a directory")


def test_a_store_in_a_directory_that_this_user_may_not_write_is_an_error(checked, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    (error,) = checked(offsets=stores.SQLite(tmp_path / "new" / "offsets.db")).errors
    assert error.message.endswith(f"this user may not write {tmp_path}")


def test_a_sink_below_a_plain_file_is_an_error(checked, tmp_path):
    (tmp_path / "file").touch()
    (error,) = checked(sink=sinks.DuckDB(tmp_path / "file" / "x.duckdb", table="t")).errors
    assert error.message.endswith(f"{tmp_path}/file is not a directory")


def test_a_store_that_another_process_has_open_is_noted(checked, tmp_path):
    path = tmp_path / "offsets.duckdb"
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); c.execute('CREATE TABLE t (i INT)'); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        report = checked(offsets=stores.DuckDB(path), reaches_spark=True)
        other.communicate("\n")
    assert report.errors == ()
    (note,) = report.notes
    assert note.startswith("the store could not be checked: another process has")


def test_a_store_that_refuses_the_login_is_an_error_and_one_that_hides_its_settings_is_noted(checked, monkeypatch):
    class Guarded(stores.Memory):
        pass

    monkeypatch.setattr(Guarded, "durability_warnings", Mock(side_effect=ConfigError("CONFIG is refused")))
    report = checked(offsets=Guarded(), reaches_spark=True)
    assert (report.errors, report.notes) == (
        (),
        ("the durability of the store could not be checked: CONFIG is refused",),
    )
    for refusal in (ConfigError("wrong password"), RetriableError("no answer")):
        monkeypatch.setattr(Guarded, "open_for_reading", Mock(side_effect=refusal))
        report = checked(offsets=Guarded())
        assert [error.message for error in report.errors] == [refusal.message]
        assert report.notes == ()


def test_looking_at_a_store_that_is_not_there_yet_creates_nothing(checked, tmp_path):
    assert checked(reaches_spark=True, offsets=stores.SQLite(tmp_path / "new" / "offsets.db")).errors == ()
    assert [*tmp_path.iterdir()] == []


# The sink


@pytest.mark.parametrize(
    "sink",
    [
        lambda at: sinks.Redis(f"redis://{at}", "clicks", key="id"),
        lambda at: sinks.Mongo(f"mongodb://{at}/app?serverSelectionTimeoutMS=200", "clicks"),
        lambda at: sinks.Cassandra(at, "app.clicks", key="id"),
        lambda at: sinks.HBase(at, "clicks", key="id"),
        lambda at: sinks.DynamoDB("clicks", region="eu-west-1", endpoint=f"http://{at}"),
        lambda at: sinks.Foreach(print, once=stores.Redis(f"redis://{at}")),
        lambda at: sinks.Fanout([sinks.Memory(), sinks.Redis(f"redis://{at}", "clicks", key="id")]),
        lambda at: sinks.Fanout([sinks.Memory(), sinks.Postgres(f"postgresql://u@{at}/app", "clicks")]),
    ],
    ids=["Redis", "Mongo", "Cassandra", "HBase", "DynamoDB", "Foreach", "Fanout", "Fanout over a transactional sink"],
)
def test_a_sink_at_a_closed_port_is_an_error_before_spark_starts(checked, monkeypatch, sink):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    (port,) = ports.free(1)
    (error,) = checked(sink=sink(f"127.0.0.1:{port}"), offsets=stores.Memory()).errors
    assert str(port) in error.message


def test_a_driver_of_the_store_of_foreach_that_is_not_installed_is_an_error(checked, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    (error,) = checked(sink=sinks.Foreach(print, once=stores.Redis("redis://h")), offsets=stores.Memory()).errors
    assert "redis is not installed" in error.message


def test_looking_at_the_store_of_foreach_creates_nothing(checked, tmp_path):
    sink = sinks.Foreach(print, once=stores.SQLite(tmp_path / "marks.db"))
    assert checked(sink=sink, offsets=stores.Memory(), reaches_spark=True).errors == ()
    assert [*tmp_path.iterdir()] == []


def test_a_target_topic_that_is_misspelt_is_an_error_before_spark_starts(checked, monkeypatch):
    asked = SimpleNamespace(limits=lambda topic: None, suggest=lambda topic: "did you mean clean?")
    monkeypatch.setattr(kafka, "TargetTopics", lambda *_: asked)
    monkeypatch.setattr(SinkOffsets, "open_for_reading", lambda store, pipeline: None)
    monkeypatch.setattr(SinkOffsets, "durability_warnings", lambda store, pipeline: [])
    monkeypatch.setattr(sinks.Kafka, "writes_to_source_cluster", lambda sink, cluster, reads: None)
    (error,) = checked(sink=sinks.Kafka("localhost:1", "claen")).errors
    assert error.message == "there is no topic claen on localhost:1"
    assert error.hint.startswith("did you mean clean? Else create=True makes it")
    assert checked(sink=sinks.Kafka("localhost:1", "claen", create=True), reaches_spark=True).errors == ()


def test_a_key_that_the_rows_lack_is_an_error_though_the_table_would_be_made(monkeypatch, rows):
    absent = SimpleNamespace(can_read=lambda name: False, resolve=lambda name: name, quoted=str)
    monkeypatch.setattr(Database, "connected", lambda database: nullcontext(absent))
    with pytest.raises(ConfigError, match="the rows lack the key user"):
        sinks.Jdbc("jdbc:derby:x", table="t", key="user", create=True).check_target(rows)


def test_looking_at_a_catalog_of_iceberg_makes_nothing_in_its_database(checked, tmp_path, rows):
    file = tmp_path / "catalog.db"
    uri = f"sqlite:///{file}"

    def look(reaches_spark=True, **more):
        sink = sinks.Iceberg("web.clicks", properties={"type": "sql", "uri": uri, "warehouse": str(tmp_path)}, **more)
        report = checked(sink=sink, offsets=stores.Memory(), reaches_spark=reaches_spark)
        if reaches_spark:
            sink.check_target(rows)
        return [error.message for error in report.errors]

    assert look() == []
    assert not file.exists()
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    before = file.read_bytes()
    assert look() == []
    assert look(create=False, reaches_spark=False)[0].endswith("there is no such table, and create=False")
    assert file.read_bytes() == before
    load_catalog("default", type="sql", uri=uri)
    before = file.read_bytes()
    assert look() == []
    assert file.read_bytes() == before


def test_looking_at_a_target_topic_registers_no_schema(monkeypatch, rows):
    asked = []
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(createDataFrame=lambda *_: "rows"))
    monkeypatch.setattr(RecordMapping, "check", lambda layout, rows, *, dry=False: asked.append(dry))
    monkeypatch.setattr(kafka, "TargetTopics", lambda *_: SimpleNamespace(limits=lambda topic: "its limits"))
    sinks.Kafka("localhost:1", "clean", format=hr.Avro(registry="http://localhost:1")).check_target(rows)
    assert asked == [True]


@pytest.mark.parametrize("part", ["format", "key_format"])
def test_a_registry_at_a_closed_port_is_an_error_before_spark_starts(checked, part):
    (port,) = ports.free(1)
    avro = hr.Avro(registry=f"http://127.0.0.1:{port}")
    (error,) = checked(source=hr.Kafka("localhost:1", topics=["clicks"], **{part: avro})).errors
    assert f"the schema registry at http://127.0.0.1:{port} does not respond" in error.message


def test_what_keeps_protobuf_from_being_read_is_an_error_before_spark_starts(checked, monkeypatch):
    def found(descriptor):
        source = hr.Kafka("localhost:1", topics=["clicks"], format=hr.Protobuf("shop.Order", descriptor=descriptor))
        (error,) = checked(source=source).errors
        return error.message

    assert "cannot use the descriptor of shop.Order" in found(b"no descriptor")
    assert found(b"") == "the descriptor has no message shop.Order"
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pool", None)
    assert "pip install 'headrace[protobuf]'" in found(b"")


@pytest.fixture
def rows():
    return StructType([StructField("id", LongType())])


@pytest.mark.parametrize("place", ["file", "file/deeper/out"])
def test_parquet_at_or_below_a_plain_file_is_an_error_of_check_and_start(checked, tmp_path, rows, place):
    (tmp_path / "file").touch()
    sink = sinks.Parquet(tmp_path / place)
    (error,) = checked(sink=sink, offsets=stores.Memory()).errors
    assert f"{tmp_path}/file is " in error.message
    for ask in (lambda: sink.check_target(rows), lambda: sink.open("clicks")):
        with pytest.raises(ConfigError, match=f"expected a directory .* got {tmp_path}/file is "):
            ask()


def test_parquet_below_a_directory_that_this_user_may_not_write_is_an_error(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    sink = sinks.Parquet(tmp_path / "new" / "out")
    for ask in (lambda: sink.check_target(rows), lambda: sink.open("clicks")):
        with pytest.raises(ConfigError, match=f"this user may not write {tmp_path}"):
            ask()
    assert [*tmp_path.iterdir()] == []


def test_who_does_not_answer_is_reported_while_it_is_waited_for(monkeypatch):
    told, shown = threading.Event(), []
    monkeypatch.setattr(checking, "_SLOW_SECONDS", 0.01)
    with checking._report_if_slow(lambda line: shown.append(line) or told.set(), "waiting for Kafka at localhost:1 …"):
        assert told.wait(20)
    monkeypatch.setattr(checking, "_SLOW_SECONDS", 60)
    with checking._report_if_slow(shown.append, "waiting for nobody"):
        pass
    assert shown == ["waiting for Kafka at localhost:1 …"]


def test_a_broker_that_is_slow_is_named_while_it_is_waited_for(monkeypatch, tmp_path):
    class Slow(Brokers):
        def led_logs(self, subscription):
            assert told.wait(20)
            raise RetriableError("no answer")

    told, shown = threading.Event(), []
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(checking, "_SLOW_SECONDS", 0.01)
    monkeypatch.setattr(checking, "Cluster", SimpleNamespace(of=lambda source: Slow("clicks")))
    source = hr.Kafka("localhost:1", topics=["clicks"])
    pipeline = hr.Pipeline(name="clicks", source=source, sink=sinks.Memory(), guarantee="at-least-once")
    assert checking.check(pipeline, {}, lambda line: shown.append(line) or told.set()).errors
    assert shown == ["waiting for Kafka at localhost:1 …"]


# The session


def test_a_session_that_repeats_tasks_is_refused_for_at_most_once_as_by_a_run(monkeypatch, tmp_path):
    settings = {"spark.master": "local[2,4]"}
    conf = SimpleNamespace(getAll=settings.items)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    asked = []
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(checking, "Cluster", SimpleNamespace(of=lambda source: Brokers("clicks")))
    monkeypatch.setattr(session, "create", lambda options, progress: asked.append(options) or spark)
    pipeline = hr.Pipeline(
        name="clicks",
        source=hr.Kafka("localhost:1", topics=["clicks"]),
        sink=sinks.Memory(),
        guarantee="at-most-once",
    )
    (error,) = checking.check(pipeline, settings).errors
    assert "at-most-once needs a Spark session that never repeats a task, got spark.master=local[2,4]" in error.message
    assert asked == [{**settings, **task_retries.OFF}]


def test_the_start_of_spark_is_shown_before_it_is_waited_for(monkeypatch, tmp_path):
    shown = []

    def create(options, progress):
        progress("fetching a jar")
        raise ConfigError("Spark did not start")

    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(checking, "Cluster", SimpleNamespace(of=lambda source: Brokers("clicks")))
    monkeypatch.setattr(session, "running", lambda: False)
    monkeypatch.setattr(session, "create", create)
    source = hr.Kafka("localhost:1", topics=["clicks"])
    pipeline = hr.Pipeline(name="clicks", source=source, sink=sinks.Memory(), guarantee="at-least-once")
    (error,) = checking.check(pipeline, {}, shown.append).errors
    assert error.message == "Spark did not start"
    assert shown == ["starting Spark to check the schema, the transform and the table …", "fetching a jar"]
