"""One pipeline, one line of configuration changed: the same events end up equal, row by row, in every sink.

HEADRACE_EVENTS says how many: `make equal` takes 100,000, the suite fewer.
"""

import inspect
import json
import os
import sqlite3
import uuid
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import duckdb
import psycopg
import pytest

from headrace import events as events_of_runs
from headrace import sinks
from headrace.runtime.config import from_toml
from headrace.testing.committed_records import read_committed

pytestmark = pytest.mark.timeout(900)

COUNT = int(os.environ.get("HEADRACE_EVENTS") or 2_000)
COLUMNS = 'id, "user", amount, ok, "at"'
TIMES = COLUMNS.replace('"at"', 'CAST("at" AS TIMESTAMP)')  # DuckDB gives one with a zone only where pytz is
PIPELINE = """
name = "{name}"
guarantee = "{guarantee}"
[source]
kafka = "{bootstrap}"
topics = ["{topic}"]
format = {{ json = "id BIGINT, user STRING, amount DECIMAL(10,2), ok BOOLEAN, at TIMESTAMP" }}
{sink}
"""


def event(number):
    return {
        "id": number,
        "user": None if number % 11 == 0 else f"naïve ✓ {number % 997}",
        "amount": f"{number % 5_000}.{number % 100:02d}",
        "ok": number % 3 == 0,
        "at": datetime.fromtimestamp(1_700_000_000 + number / 8, UTC).isoformat(timespec="milliseconds"),
    }


def same(number, user, amount, ok, at):
    """A row as every sink must give it back, whatever it calls its types."""
    when = datetime.fromisoformat(at) if isinstance(at, str) else at
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    truth = ok if isinstance(ok, bool) else {"true": True, "false": False, 1: True, 0: False}[ok]
    return (int(number), user, Decimal(str(amount)).quantize(Decimal("0.01")), truth, when)


def of(row):
    return same(row["id"], row.get("user"), row["amount"], row["ok"], row["at"])


@pytest.fixture(scope="module")
def events(kafka):
    """The topic, and its rows as they must be found."""
    from headrace.testing.fixtures import Topic

    topic = Topic(kafka.bootstrap, f"every-{uuid.uuid4().hex[:8]}", 4, {})
    topic.produce(event(number) for number in range(COUNT))
    return topic, sorted(of(event(number)) for number in range(COUNT)), kafka.bootstrap


def spark_rows(frame):
    """The rows of a table that Spark reads."""
    found = frame.selectExpr("id", "`user`", "amount", "ok", "unix_micros(`at`) AS at").collect()
    return [same(*row[:4], datetime.fromtimestamp(row["at"] / 1e6, UTC)) for row in found]


# Each gives the [sink] of the file, or a sink that no file can name, and a function that reads every row; `server` is
# the address of its server.


def duckdb_sink(name, server, directory):
    def rows():
        with duckdb.connect(str(directory / "r.duckdb")) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return [same(*row) for row in connection.execute(f"SELECT {TIMES} FROM r").fetchall()]

    return f'duckdb = "{directory}/r.duckdb"\ntable = "r"', rows


def sqlite_sink(name, server, directory):
    def rows():
        with closing(sqlite3.connect(directory / "r.db")) as connection:
            return [same(*row) for row in connection.execute(f"SELECT {COLUMNS} FROM r").fetchall()]

    return f'sqlite = "{directory}/r.db"\ntable = "r"', rows


def postgres_sink(name, server, directory):
    def rows():
        with psycopg.connect(server) as connection:
            return [same(*row) for row in connection.execute(f'SELECT id, "user", amount, ok, "at" FROM "{name}"')]

    return f'postgres = "{server}"\ntable = "{name}"\ncreate = true', rows


def parquet_sink(name, server, directory):
    def rows():
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            asked = f"SELECT {TIMES} FROM read_parquet('{directory}/r/*/*.parquet')"
            return [same(*row) for row in connection.execute(asked).fetchall()]

    return f'parquet = "{directory}/r"', rows


def delta_sink(name, server, directory):
    def rows():
        from deltalake import DeltaTable

        return [of(row) for row in DeltaTable(directory / "delta").to_pyarrow_table().to_pylist()]

    return f'delta = "{directory}/delta"', rows


def kafka_sink(name, server, directory):
    def rows():
        return [of(json.loads(record.value())) for record in read_committed(server, name)]

    return f'kafka = "{server}"\ntopic = "{name}"\ncreate = {{ partitions = 3 }}', rows


def cassandra_sink(name, server, directory):
    from cassandra.cluster import Cluster

    host, port = server.split(":")
    with Cluster([host], port=int(port), protocol_version=4) as cluster:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        cluster.connect().execute(f"CREATE KEYSPACE IF NOT EXISTS every WITH replication = {replication}")

    def rows():
        with Cluster([host], port=int(port), protocol_version=4) as cluster:
            asked = f'SELECT id, "user", amount, ok, "at" FROM every.{name}'
            return [same(*row) for row in cluster.connect().execute(asked, timeout=60)]

    return f'cassandra = "{server}"\ntable = "every.{name}"\ncreate = true', rows


def redis_sink(name, server, directory):
    def rows():
        import redis

        with redis.Redis.from_url(server, decode_responses=True) as client:
            keys = list(client.scan_iter(f"{name}:*", count=10_000))
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.hgetall(key)
            return [of(row) for row in pipe.execute()]

    return f'redis = "{server}"\nname = "{name}"', rows


def mongo_sink(name, server, directory):
    def rows():
        from pymongo import MongoClient

        with MongoClient(server) as client:
            return [of(row) for row in client["every"][name].find()]

    return f'mongo = "{server}"\ncollection = "every.{name}"\ncreate = true', rows


def dynamodb_sink(name, server, directory):
    def rows():
        from boto3.dynamodb.types import TypeDeserializer

        from headrace.connectors.dynamodb import client as dynamodb_client

        client = dynamodb_client.connect(None, server)
        read = TypeDeserializer().deserialize
        try:
            pages = client.get_paginator("scan").paginate(TableName=name)
            return [of({k: read(v) for k, v in item.items()}) for page in pages for item in page["Items"]]
        finally:
            client.close()

    return f'dynamodb = "{name}"\nendpoint = "{server}"\ncreate = true', rows


def hbase_sink(name, server, directory):
    def rows():
        import happybase

        host, port = server.split(":")
        with closing(happybase.Connection(host, int(port))) as connection:
            found = [cells for _, cells in connection.table(name).scan(batch_size=1_000)]
        return [of({key.decode()[2:]: value.decode() for key, value in cells.items()}) for cells in found]

    return f'hbase = "{server}"\ntable = "{name}"\ncreate = true', rows


def iceberg_sink(name, server, directory):
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}

    def rows():
        from pyiceberg.catalog import load_catalog

        return [of(row) for row in load_catalog("default", **catalog).load_table("web.r").scan().to_arrow().to_pylist()]

    listed = "".join(f'\n{key} = "{value}"' for key, value in catalog.items())
    return f'iceberg = "web.r"\n[sink.properties]{listed}', rows


def hive_sink(name, server, directory):
    from pyspark.sql import SparkSession

    return f'hive = "{name}"\nlocation = "{directory}/hive"', lambda: spark_rows(SparkSession.active().table(name))


def jdbc_sink(name, server, directory):
    from pyspark.sql import SparkSession

    url, driver = f"jdbc:derby:{directory}/derby;create=true", "org.apache.derby.iapi.jdbc.AutoloadedDriver"

    def rows():
        read = SparkSession.active().read.format("jdbc").options(url=url, driver=driver, dbtable=f'"{name}"')
        return spark_rows(read.load())

    return f'jdbc = "{url}"\ntable = "{name}"\ndriver = "{driver}"\ncreate = true', rows


def fanout_sink(name, server, directory):
    one, read_one = duckdb_sink(name, server, directory)
    other, read_other = parquet_sink(name, server, directory)

    def rows():
        found = read_one()
        assert sorted(found, key=lambda row: row[0]) == sorted(read_other(), key=lambda row: row[0])
        return found

    return f"[[sinks]]\n{one}\n[[sinks]]\n{other}", rows


def foreach_sink(name, server, directory):
    def write(row):
        kept = {key: str(row[key]) if key == "amount" else row[key] for key in ("id", "user", "amount", "ok")}
        at = row["at"].astimezone(UTC).isoformat()
        (directory / f"{row['id']}.json").write_text(json.dumps({**kept, "at": at}))

    return sinks.Foreach(write), lambda: [of(json.loads(file.read_text())) for file in directory.glob("*.json")]


SINKS = {
    "cassandra": cassandra_sink,
    "delta": delta_sink,
    "duckdb": duckdb_sink,
    "dynamodb": dynamodb_sink,
    "fanout": fanout_sink,
    "foreach": foreach_sink,
    "hbase": hbase_sink,
    "hive": hive_sink,
    "iceberg": iceberg_sink,
    "jdbc": jdbc_sink,
    "kafka": kafka_sink,
    "mongo": mongo_sink,
    "parquet": parquet_sink,
    "postgres": postgres_sink,
    "redis": redis_sink,
    "sqlite": sqlite_sink,
}
SERVERS = {"cassandra", "dynamodb", "hbase", "kafka", "mongo", "postgres", "redis"}


@pytest.mark.parametrize("kind", SINKS)
def test_the_same_events_are_equal_in_every_sink(kind, events, spark, request, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    topic, wanted, bootstrap = events
    name = f"t_{uuid.uuid4().hex[:12]}"
    server = request.getfixturevalue(kind).address if kind in SERVERS else None
    sink, rows = SINKS[kind](name, server, tmp_path)
    file = tmp_path / "pipeline.toml"
    text = sink if isinstance(sink, str) else sqlite_sink(name, server, tmp_path)[0]
    text = text if text.startswith("[[") else f"[sink]\n{text}"
    guarantee = "exactly-once" if isinstance(sink, str) else "at-least-once"
    file.write_text(PIPELINE.format(name=name, bootstrap=bootstrap, topic=topic.name, sink=text, guarantee=guarantee))
    made = from_toml(file).pipeline
    if not isinstance(sink, str):
        made = replace(made, sink=sink)

    seen = []
    made.run(until="caught-up", session=spark, fail_fast=True, observer=seen.append)

    assert sorted(rows(), key=lambda row: row[0]) == wanted
    done = [event for event in seen if isinstance(event, events_of_runs.BatchDone)]
    assert [event.records for event in done] == [len(event.batch) for event in done]
    assert (seen[-1].records, seen[-1].rows) == (COUNT, COUNT)


def test_every_sink_that_keeps_rows_is_among_them():
    kept_by_nobody = {"Console", "Memory"}  # a terminal, and the process that the test is
    public = {name for name in sinks.__all__ if isinstance(getattr(sinks, name), type)}
    made = {name for name in public if not inspect.isabstract(getattr(sinks, name))} - kept_by_nobody
    assert {name.lower() for name in made} - set(SINKS) == set()
