"""Looking at offsets and dead letters creates nothing: no file, no directory, no table, no topic."""

import re
import sqlite3
import uuid

import duckdb
import pytest
from confluent_kafka.admin import AdminClient

from headrace import dev, stores
from headrace.connectors.cassandra import client as cql
from headrace.core.state import State
from headrace.tools.offsets.editor import OffsetEditor


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))


def look(store, said):
    """A store that is not there, as the verbs of `headrace offsets` meet it."""
    with OffsetEditor("nobody", store, None, {}) as editor:
        assert editor.state == State()
        assert re.search(said, editor.missing or "")


def test_a_sqlite_file_that_is_not_there(tmp_path):
    look(stores.SQLite(tmp_path / "deep" / "offsets.db"), "there is no file")
    assert list(tmp_path.iterdir()) == []


def test_a_sqlite_file_without_offsets_stays_as_it_is(tmp_path):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    before = path.read_bytes()
    look(stores.SQLite(path), "holds no offsets")
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)


def test_a_sqlite_file_that_was_looked_at_has_nothing_beside_it(tmp_path):
    path = tmp_path / "offsets.db"
    stores.SQLite(path).open("clicks").close()
    store = stores.SQLite(path)
    assert store.open_for_reading("clicks") is None
    store.read()
    store.close()
    assert list(tmp_path.iterdir()) == [path]


def test_a_duckdb_file_that_is_not_there(tmp_path):
    look(stores.DuckDB(tmp_path / "deep" / "offsets.duckdb"), "there is no file")
    assert list(tmp_path.iterdir()) == []


def test_a_duckdb_file_without_offsets_stays_as_it_is(tmp_path):
    path = tmp_path / "app.duckdb"
    duckdb.connect(str(path)).close()
    before = path.read_bytes()
    look(stores.DuckDB(path), "holds no offsets")
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)


def test_a_postgres_database_without_tables(postgres):
    import psycopg

    name = f"looking_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    dsn = psycopg.conninfo.make_conninfo(postgres.dsn, dbname=name)
    look(stores.Postgres(dsn), "holds no offsets")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == []


def test_a_cassandra_without_the_keyspace_or_the_table(cassandra):
    keyspace = f"looking_{uuid.uuid4().hex[:12]}"
    cluster, session = cql.connect(cql.parse_hosts(cassandra.hosts), None, None, {})
    asked = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
    try:
        look(stores.Cassandra(cassandra.hosts, keyspace=keyspace, create=True), "there is no keyspace")
        assert not list(session.execute("SELECT * FROM system_schema.keyspaces WHERE keyspace_name = %s", [keyspace]))
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        look(stores.Cassandra(cassandra.hosts, keyspace=keyspace), "there is no table")
        assert not list(session.execute(asked, [keyspace]))
    finally:
        cluster.shutdown()


def test_an_hbase_without_the_table(request):
    happybase = pytest.importorskip("happybase")
    hbase = request.getfixturevalue("hbase")
    table = f"looking_{uuid.uuid4().hex[:12]}"
    look(stores.HBase(hbase.thrift, table=table), "there is no table")
    host, _, port = hbase.thrift.rpartition(":")
    connection = happybase.Connection(host, int(port))
    assert table.encode() not in connection.tables()
    connection.close()


def test_a_redis_and_a_zookeeper_that_have_nothing_of_the_pipeline(redis, zookeeper):
    from kazoo.client import KazooClient

    from headrace.connectors.redis.client import connect

    name = f"looking-{uuid.uuid4().hex[:12]}"
    for store in (stores.Redis(redis.url), stores.ZooKeeper(zookeeper.hosts)):
        with OffsetEditor(name, store, None, {}) as editor:
            assert (editor.state, list(editor.store.history())) == (State(), [])
    client = connect(redis.url)
    assert client.keys(f"*{name}*") == []
    client.close()
    zoo = KazooClient(zookeeper.hosts)
    zoo.start()
    assert zoo.exists(f"/consumers/{name}") is None
    zoo.stop()
    zoo.close()


def test_a_kafka_in_which_no_group_ever_had_offsets(tmp_path):
    with dev.Kafka(tmp_path / "kafka") as kafka:
        look(stores.Kafka(kafka.bootstrap), "no group has offsets")
        topics = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0}).list_topics(timeout=30).topics
    assert list(topics) == []
    assert not (tmp_path / "state").exists()


TOML = """
    name = "clicks"
    guarantee = "exactly-once"
    dead_letters = "bad"
    [source]
    kafka = "{where.bootstrap}"
    topics = ["{where.name}"]
    format = {{ json = "id INT" }}
    [sink]
    {kind} = "{path}"
    table = "rows"
"""


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_no_verb_that_looks_and_no_dry_run_leaves_anything_behind(kind, topic, cli, tmp_path):
    where = topic(partitions=2)
    where.produce([{"id": number} for number in range(10)])
    path = tmp_path / "deep" / "rows.db"
    file = tmp_path / "clicks.toml"
    file.write_text(TOML.format(where=where, kind=kind, path=path))
    for verb in ("show", "lag", "history", "export"):
        done = cli("offsets", verb, file)
        assert done.code == 2
        assert done.line("error: ") == f"clicks has no offsets: there is no file {path}"
    for verb in ("list",), ("show", "--all"), ("replay", "--all"), ("drop", "--all"):
        done = cli("dead-letters", *verb, file)
        assert done.code == 2
        assert done.line("error: ") == f"clicks has no dead letters: there is no file {path}"
    for words in (["reset", file, "--to", "earliest"], ["seek", file, f"{where.name}:0=3"]):
        done = cli("offsets", *words)
        assert done.code == 0
        assert done.line("note: ") == f"there is no file {path}; --execute creates it"
        assert "none" in done.out
    assert cli("topics", "describe", where.name, "--pipeline", file, "--bootstrap", where.bootstrap).code == 0
    assert sorted(tmp_path.iterdir()) == [file]


def test_dead_letters_of_a_table_that_is_not_there_are_none_and_create_none(topic, cli, tmp_path):
    where = topic(partitions=1)
    path = tmp_path / "rows.db"
    stores.SQLite(path).open("clicks").close()
    file = tmp_path / "clicks.toml"
    file.write_text(TOML.format(where=where, kind="sqlite", path=path))
    assert cli("dead-letters", "list", file).out == "0 dead letters in table bad\n"
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'bad'").fetchall() == []
    connection.close()
