"""The identity of a sink: state is stored under it, so it is the same text in every version."""

import inspect
import sqlite3

import pytest

from headrace import sinks, stores
from headrace.connectors.shared.task_sink import TaskSink
from headrace.core.dead_letters import DeadLetter, DeadLetterBatch, RecordId
from headrace.errors import ConfigError
from headrace.spark.tasks import Report
from headrace.types import Batch, Range, TopicPartition
from support.project import ROOT

ABSTRACT = {"DeadLetterTableSink", "IdempotentSink", "KeyedSink", "RowRejectingSink", "Sink", "TransactionalSink"}
AT = TopicPartition("clicks", 0)


def send(row):
    """An effect."""


send.__module__ = "app"


# What is stored hangs on these texts and digits: a line may be added, none may be changed.
IDENTITIES = [
    (
        lambda: sinks.Cassandra(["a", "b:9043"], "app.clicks", username="u", password="hidden"),
        "sinks.Cassandra('a:9042,b:9043', 'app.clicks')",
        "494456f0",
    ),
    (lambda: sinks.Console(limit=5), "sinks.Console(limit=5)", "4b9c084d"),
    (
        lambda: sinks.Delta("s3://lake/clicks", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"}),
        "sinks.Delta('s3://lake/clicks')",
        "d6ec576c",
    ),
    (lambda: sinks.Delta("/lake/clicks"), "sinks.Delta('/lake/clicks')", "f4928132"),
    (lambda: sinks.DuckDB("app.duckdb", "clicks"), "sinks.DuckDB('app.duckdb', table='clicks')", "7c0c0497"),
    (lambda: sinks.DynamoDB("clicks"), "sinks.DynamoDB('clicks')", "37253454"),
    (lambda: sinks.DynamoDB("clicks", region="eu-west-1"), "sinks.DynamoDB('clicks', region='eu-west-1')", "a42174bc"),
    (
        lambda: sinks.DynamoDB("clicks", region="eu-west-1", endpoint="http://d:8000"),
        "sinks.DynamoDB('clicks', endpoint='http://d:8000')",
        "da32d303",
    ),
    (lambda: sinks.Foreach(send), "sinks.Foreach(app.send)", "24d9a916"),
    (
        lambda: sinks.Foreach(send, once=stores.SQLite("marks.db")),
        "sinks.Foreach(app.send, once=stores.SQLite('marks.db'), mark='after')",
        "0078d68a",
    ),
    (
        lambda: sinks.Foreach(send, once=stores.Redis("redis://:hidden@r:6379/1"), mark="before"),
        "sinks.Foreach(app.send, once=stores.Redis('redis://:***@r:6379/1'), mark='before')",
        "9be9854d",
    ),
    (
        lambda: sinks.Foreach(send, once=stores.Postgres("postgresql://u:hidden@h/db")),
        "sinks.Foreach(app.send, once=stores.Postgres('postgresql://u:***@h/db'), mark='after')",
        "9eb46e69",
    ),
    (lambda: sinks.HBase("h:9090", "clicks"), "sinks.HBase('h:9090', 'clicks')", "8d0e2304"),
    (lambda: sinks.Hive("app.clicks"), "sinks.Hive('app.clicks')", "25a2f89f"),
    (
        lambda: sinks.Hive("clicks", partition_by=["day", "hour"]),
        "sinks.Hive('clicks', partition_by=['day', 'hour'])",
        "3df75975",
    ),
    (
        lambda: sinks.Iceberg("app.clicks", properties={"type": "sql", "uri": "postgresql+psycopg://u:hidden@h/db"}),
        "sinks.Iceberg('app.clicks', catalog at postgresql+psycopg://u:***@h/db)",
        "b46e5932",
    ),
    (
        lambda: sinks.Jdbc("jdbc:mysql://u:hidden@h:3306/db?password=hidden", table="clicks"),
        "sinks.Jdbc('jdbc:mysql://u:***@h:3306/db?password=***', table='clicks')",
        "b15cf86c",
    ),
    (lambda: sinks.Kafka(["a:9092", "b:9092"], "clean"), "sinks.Kafka('a:9092,b:9092', 'clean')", "3bb9fcac"),
    (
        lambda: sinks.Kafka("a:9092", topic_column="kind", topics=["x"]),
        "sinks.Kafka('a:9092', topic_column='kind')",
        "a92ab5f1",
    ),
    (sinks.Memory, "sinks.Memory()", "46421ebe"),
    (
        lambda: sinks.Mongo("mongodb://u:hidden@h:27017/?authSource=admin", "shop.orders"),
        "sinks.Mongo('mongodb://u:***@h:27017/?authSource=admin', 'shop.orders')",
        "c591a3b9",
    ),
    (lambda: sinks.Parquet("hdfs://name:8020/clicks"), "sinks.Parquet('hdfs://name:8020/clicks')", "78a1dbfd"),
    (
        lambda: sinks.Parquet("/lake/clicks", partition_by="day"),
        "sinks.Parquet('/lake/clicks', partition_by=['day'])",
        "db0166d1",
    ),
    (
        lambda: sinks.Postgres("postgresql://u:hidden@h:5432/db?sslmode=require", "app.clicks"),
        "sinks.Postgres('postgresql://u:***@h:5432/db?sslmode=require', 'app.clicks')",
        "18c1bc47",
    ),
    (
        lambda: sinks.Postgres("host=h port=5432 dbname=db user=u password=hidden", "clicks"),
        "sinks.Postgres('host=h port=5432 dbname=db user=u password=***', 'clicks')",
        "81bdcfa0",
    ),
    (
        lambda: sinks.Redis("redis://u:hidden@r:6379/0", "clicks", key="id"),
        "sinks.Redis('redis://u:***@r:6379/0', 'clicks', structure='hash')",
        "1ebe3442",
    ),
    (
        lambda: sinks.Redis("redis://r:6379", "clicks", structure="stream"),
        "sinks.Redis('redis://r:6379', 'clicks', structure='stream')",
        "aaf21a25",
    ),
    (lambda: sinks.SQLite("app.db", "clicks"), "sinks.SQLite('app.db', table='clicks')", "2fef15f2"),
]
IDS = [text for _, text, _ in IDENTITIES]


def batch(number, start, until):
    return Batch(number, (Range(AT, start, until),), {"clicks": "id-1"})


@pytest.mark.parametrize(("make", "text"), [(make, text) for make, text, _ in IDENTITIES], ids=IDS)
def test_the_identity_of_a_sink_is_the_same_in_every_version(make, text):
    assert make().identity == text


@pytest.mark.parametrize(("make", "text", "key"), IDENTITIES, ids=IDS)
def test_a_fan_out_keeps_state_under_the_same_key_in_every_version_whatever_a_repr_shows(make, text, key, monkeypatch):
    sink, opened = make(), []
    monkeypatch.setattr(type(sink), "__repr__", lambda self: "a sink")
    monkeypatch.setattr(type(sink), "open", lambda self, pipeline: opened.append(pipeline))
    sinks.Fanout([sink]).open("p").close()
    assert (sink.identity, opened) == (text, [f"p.{key}"])


def test_the_identity_of_foreach_does_not_hang_on_the_repr_of_its_store(monkeypatch):
    monkeypatch.setattr(stores.SQLite, "__repr__", lambda self: "a store")
    once = stores.SQLite("marks.db")
    assert "once=stores.SQLite('marks.db')" in sinks.Foreach(send, once=once).identity


def test_no_identity_shows_a_password():
    assert not [text for make, text, _ in IDENTITIES if "hidden" in make().identity]


def test_every_sink_has_an_identity():
    pinned = {type(make()) for make, _, _ in IDENTITIES}
    public = {name: getattr(sinks, name) for name in sinks.__all__}
    concrete = {kind for name, kind in public.items() if inspect.isclass(kind) and name not in ABSTRACT}
    assert concrete - pinned == {sinks.Fanout}  # which is made of others


def test_a_fan_out_goes_on_from_what_an_earlier_version_stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("app.db") as database:
        database.executescript((ROOT / "tests" / "stored" / "fanout.sql").read_text())
    database.close()
    written = []
    write = lambda self, batch, rows: written.append((self.identity, batch.id))  # noqa: E731
    monkeypatch.setattr(sinks.SQLite, "write", write)
    with sinks.Fanout([sinks.SQLite("app.db", "clicks"), sinks.SQLite("app.db", "audit")]).open("p") as sink:
        assert [one.offsets.load().offsets for one in sink.members] == [{AT: 5}, {AT: 3}]
        assert sink.last_batch() == 7
        sink.write(batch(7, 3, 5), None)
    assert written == [("sinks.SQLite('app.db', table='audit')", 7)]


class Nameless(sinks.IdempotentSink):
    def write(self, batch, rows):
        """Nothing."""


def test_a_sink_without_an_identity_is_refused_in_a_fan_out():
    with pytest.raises(ConfigError, match="got Nameless without one") as refused:
        sinks.Fanout([sinks.Memory(), Nameless()])
    assert "identity = " in refused.value.hint


class Refusing(TaskSink):
    identity = "refusing /data"

    def __repr__(self):
        return "shown in another way"

    def _write_rows(self, batch, rows, limit):
        return [Report(refused=[(RecordId("clicks", 0, 3), "no")])]


def test_a_dead_letter_holds_the_identity_of_the_sink_that_refused_its_row():
    def originals(refusals):
        return [DeadLetter(r.origin, None, None, b"1", (), r.error, r.place) for r in refusals]

    sent = []
    quarantine = DeadLetterBatch([], limit=5, max_bytes=100, fetch_records=originals, table=None, send=sent.extend)
    Refusing().write_with_dead_letters(batch(1, 0, 5), None, quarantine)
    assert [letter.place for letter in sent] == ["refusing /data"]
