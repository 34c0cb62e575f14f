"""A look at rows before anything is stored: previews, transforms in unit tests, static tables, Avro from JSON lines."""

import datetime
import json
import subprocess
import sys
import uuid

import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace import sinks, testing
from headrace.engine.decoder import Decoder
from headrace.errors import BadRecord, ConfigError
from headrace.runtime.static_tables import StaticTable

SCHEMA = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def clean(rows):
    return rows.where("user IS NOT NULL").select("user", F.to_date("_kafka.timestamp").alias("day"), "_kafka.offset")


def test_a_transform_can_be_tested_without_kafka(spark):
    rows = testing.rows(spark, "user STRING, page STRING", [("ann", "/"), (None, "/x")])
    assert [tuple(row) for row in clean(rows).collect()] == [("ann", datetime.date(2024, 1, 1), 0)]
    moved = testing.rows(spark, "user STRING", [{"user": "bea", "_kafka": {"offset": 7, "partition": 2, "key": b"k"}}])
    assert moved.selectExpr("user", "_kafka.partition", "_kafka.offset", "_kafka.key").collect()[0][:3] == ("bea", 2, 7)
    with pytest.raises(ConfigError, match=r"unknown column _kafka\.partitoin"):
        testing.rows(spark, "user STRING", [{"_kafka": {"partitoin": 2}}])
    with pytest.raises(ConfigError, match="row 0 has 1 value; expected 2: user, page"):
        testing.rows(spark, "user STRING, page STRING", [("ann",)])


def test_those_rows_have_the_columns_of_a_run(spark):
    made = testing.rows(spark, "id BIGINT, user STRING", [])
    assert made.schema == Decoder(spark, hr.Json("id BIGINT, user STRING")).empty_argument().schema


def pipeline(where, tmp_path, **changes):
    arguments = {
        "name": "clicks",
        "source": hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT, user STRING")),
        "transform": lambda rows: rows.where("id % 2 = 0").selectExpr("id * 10 AS ten", "user", "_kafka"),
        "sink": sinks.DuckDB(tmp_path / "x.duckdb", table="t"),
        "guarantee": "exactly-once",
        **changes,
    }
    return hr.Pipeline(**arguments)


def test_a_preview_shows_the_newest_rows_and_stores_nothing(spark, topic, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    where = topic(partitions=2)
    empty = hr.preview(pipeline(where, tmp_path), session=spark)
    assert (empty.columns, empty.collect()) == (["ten", "user"], [])
    where.produce([{"id": number, "user": "ann"} for number in range(100)], partition=0)
    shown = hr.preview(pipeline(where, tmp_path), 4, session=spark)
    assert sorted(row.ten for row in shown.collect()) == [960, 980]
    assert list(tmp_path.iterdir()) == []
    where.produce([b"oops"], partition=1)
    with pytest.raises(BadRecord, match="offset 0"):
        hr.preview(pipeline(where, tmp_path), 4, session=spark)
    letters = pipeline(where, tmp_path, dead_letters="dead")
    assert len(hr.preview(letters, 4, session=spark).collect()) == 2
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="n: expected a whole number of rows, at least 1, got 0"):
        hr.preview(letters, 0)


TOML = """
name = "clicks"
guarantee = "exactly-once"
[source]
kafka = "{bootstrap}"
topics = ["{topic}"]
format = {{ avro = true, registry = "{registry}" }}
[tables.users]
csv = "users.csv"
[tables.places]
json = "places.json"
schema = "name STRING, place STRING"
[transform]
sql = "SELECT id, at, users.name, place FROM rows JOIN users USING (user) LEFT JOIN places USING (name) ORDER BY id"
[sink]
duckdb = "x.duckdb"
table = "t"
"""


def test_json_lines_become_avro_that_a_preview_joins_with_tables(spark, topic, schema_registry, cli, tmp_path):
    where = topic(partitions=1)
    (tmp_path / "click.avsc").write_text(json.dumps(SCHEMA))
    lines = tmp_path / "lines.json"
    lines.write_text(
        '{"id": 1, "user": "ann", "at": "2024-05-01T10:00:00Z"}\n{"id": 2, "at": 0}\n{"id": "x", "at": 0}\n'
        '{"id": 3, "user": "bea", "at": 0}\n'
    )
    address = ["--bootstrap", where.bootstrap, "--registry", schema_registry.url]
    sent = cli("produce", where.name, "--file", lines, "--avro", tmp_path / "click.avsc", *address)
    assert sent.code == 1
    assert 'the value does not fit the Avro schema: id: expected long, got "x"' in sent.err
    (tmp_path / "users.csv").write_text("user,name\nann,Ann\nbea,Bea\n")
    (tmp_path / "places.json").write_text('{"name": "Ann", "place": "Ulm"}\n')
    file = tmp_path / f"clicks-{uuid.uuid4().hex[:8]}.toml"
    file.write_text(TOML.format(bootstrap=where.bootstrap, topic=where.name, registry=schema_registry.url))
    done = cli("run", file, "--preview", "5")
    assert done.code == 0, done.err
    head, *rows = [line.split() for line in done.out.splitlines()]
    assert head == ["id", "at", "name", "place"]
    assert rows == [["1", "2024-05-01", "10:00:00", "Ann", "Ulm"], ["3", "1970-01-01", "00:00:00", "Bea", "NULL"]]
    assert "2 rows; nothing was stored or committed" in done.err
    assert not (tmp_path / "x.duckdb").exists()


def test_json_lines_become_avro_without_a_registry(spark, topic, cli, tmp_path):
    where = topic(partitions=1)
    (tmp_path / "click.avsc").write_text(json.dumps(SCHEMA))
    (tmp_path / "lines.json").write_text('{"id": 1, "user": "ann", "at": "2024-05-01T10:00:00Z"}\n{"id": 2, "at": 0}\n')
    sent = ["--file", tmp_path / "lines.json", "--avro", tmp_path / "click.avsc", "--bootstrap", where.bootstrap]
    assert cli("produce", where.name, *sent).code == 0
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Avro(tmp_path / "click.avsc"))
    shown = hr.preview(pipeline(where, tmp_path, source=source, transform=lambda rows: rows), session=spark)
    assert [(row.id, row.user, row.at.timestamp()) for row in shown.collect()] == [
        (1, "ann", 1_714_557_600.0),
        (2, None, 0.0),
    ]


def test_a_static_table_may_be_parquet(spark, tmp_path):
    path = tmp_path / "users"
    spark.sql("SELECT 'ann' AS user, 7 AS n").write.parquet(str(path))
    table = StaticTable("parquet", path.as_uri(), None)
    assert [tuple(row) for row in table.frame(spark).collect()] == [("ann", 7)]


def test_a_static_table_is_read_once(spark, tmp_path):
    file = tmp_path / "users.csv"
    file.write_text("user,born,at\nann,1990-01-02,2024-05-01T10:00:00Z\n")
    table = StaticTable("csv", file.as_uri(), "user STRING, born DATE, at TIMESTAMP")
    first = table.frame(spark)
    assert first.schema == spark.read.schema(table.schema).csv(table.path).schema
    before = first.collect()
    file.write_text("user,born,at\nbea,1991-01-02,2024-05-01T10:00:00Z\ncid,,\n")
    assert table.frame(spark).collect() == before
    assert table.frame(spark.newSession()).collect() == before
    file.unlink()
    assert [row.user for row in first.collect()] == ["ann"]


NOTEBOOK = """
from pyspark.sql import SparkSession

import headrace as hr
from headrace import sinks
from headrace.errors import ConfigError

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
clicks = hr.Pipeline(
    name="clicks",
    source=hr.Kafka("{bootstrap}", topics=["{topic}"], format=hr.Json("id BIGINT")),
    sink=sinks.Memory(),
    guarantee="at-least-once",
)
for attempt in (lambda: hr.preview(clicks, session=spark), hr.session):
    try:
        attempt()
    except ConfigError as error:
        assert "hr.session(restart=True)" in error.hint, error.hint
    else:
        raise AssertionError("a session without the connector was taken")
spark = hr.session({{"spark.master": "local[1]"}}, restart=True)
assert hr.session() is spark
print("ids", [row.id for row in hr.preview(clicks, session=spark).collect()])
"""


def test_a_notebook_whose_session_lacks_the_connector_gets_one_in_the_same_process(topic, tmp_path):
    where = topic(partitions=1)
    where.produce([{"id": 7}])
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK.format(bootstrap=where.bootstrap, topic=where.name))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "ids [7]" in done.stdout
