"""The Cassandra sink on a real server: types, what is refused and where it goes, lost connections, times to live."""

import ssl
import time
import uuid
from datetime import date, datetime
from decimal import Decimal

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import BadRecord, ConfigError, OffsetConflict, RetriableError
from headrace.testing.sinks import batch, frame, numbered, upserts
from headrace.tools.dead_letters import DeadLetterAdmin
from headrace.types import Batch, Range, TopicPartition
from support.tcp_proxy import CutAfterFirstBatch, TcpProxy

NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def ask(cassandra):
    """CQL in, rows out."""
    from cassandra.cluster import Cluster

    stores.Cassandra(cassandra.hosts, keyspace="sink", create=True).open("keyspace").close()
    host, port = cassandra.hosts.split(":")
    with Cluster([host], port=int(port), protocol_version=4) as cluster:
        session = cluster.connect("sink")
        yield lambda statement: [tuple(row) for row in session.execute(statement)]


@pytest.fixture
def table():
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def sink_on(cassandra, table):
    """Sinks on one table, opened."""
    made = []

    def make(**settings):
        made.append(sinks.Cassandra(cassandra.hosts, f"sink.{table}", **settings).open("p"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def schema(columns):
    from pyspark.sql.types import StructType

    return StructType.fromDDL(columns)


# Types


def test_every_type_comes_back_as_it_went(spark, ask, table, sink_on):
    full = spark.sql(
        """SELECT 1 AS id, true AS bool, -128Y AS tiny, -32768S AS small, 9223372036854775807L AS big,
        CAST(0.5 AS FLOAT) AS float, CAST('NaN' AS DOUBLE) AS double, -1234567890.123456789BD AS dec,
        'naïve "😀"' AS text, X'00FF' AS bytes, DATE'2024-02-29' AS day,
        TIMESTAMP'2024-03-31 01:30:00.123 UTC' AS at, INTERVAL '1 02:03:04.5' DAY TO SECOND AS apart,
        array(1, 2, 2) AS items, map('k', array(1.5D)) AS m, named_struct('a', CAST(NULL AS INT), 'b', 'x') AS s,
        array(named_struct('k', 1L)) AS nested"""
    )
    empty = full.selectExpr("2 AS id", *[f"if(rand() > 2, {name}, NULL) AS {name}" for name in full.columns[1:]])
    sink = sink_on(key="id", create=True)
    sink.write(batch(1, 0, 1), full)
    sink.write(batch(2, 1, 2), empty)

    names = ", ".join(f'"{name}"' for name in full.columns)
    rows = {row[0]: row for row in ask(f"SELECT {names} FROM {table}")}
    assert rows[2] == (2, *[None] * 16)
    _, *plain, double, dec, text, raw, day, at, apart, items, mapping, struct, nested = rows[1]
    assert plain == [True, -128, -32768, 9223372036854775807, 0.5]
    assert double != double
    assert (dec, text, raw) == (Decimal("-1234567890.123456789"), 'naïve "😀"', b"\x00\xff")
    assert (day.date(), at) == (date(2024, 2, 29), datetime(2024, 3, 31, 1, 30, 0, 123_000))
    assert (apart.months, apart.days, apart.nanoseconds) == (0, 0, (26 * 3600 + 3 * 60 + 4.5) * 1e9)
    assert (list(items), dict(mapping), struct, list(nested)) == ([1, 2, 2], {"k": [1.5]}, (None, "x"), [(1,)])


def test_a_table_of_ones_own_takes_what_fits_and_a_repeat_doubles_nothing(spark, ask, table, sink_on):
    kind = f"place_{table}"
    ask(f'CREATE TYPE {kind} (city text, "postCode" int)')
    ask(
        f"CREATE TABLE {table} (id int PRIMARY KEY, u uuid, address inet, tags set<text>, m map<text, int>,"
        f" home frozen<{kind}>, whole varint, moment timestamp, note text)"
    )
    rows = spark.sql(
        """SELECT 1L AS id, '6b2f9d0e-9f5b-4b6e-8a0e-0d8f0d8f0d8f' AS u, '127.0.0.1' AS address,
        array('b', 'a', 'b') AS tags, map('k', 1Y) AS m, named_struct('postCode', 10115, 'city', 'Berlin') AS home,
        5 AS whole, DATE'2024-02-29' AS moment,
        named_struct('topic', 'clicks', 'partition', 0, 'offset', 3L) AS _kafka"""
    )
    sink = sink_on(key="id")
    for _ in range(2):
        sink.write(batch(1, 3, 4), rows)
    ((number, unique, address, tags, mapping, home, whole, moment, note),) = ask(
        f"SELECT id, u, address, tags, m, home, whole, moment, note FROM {table}"
    )
    assert (number, str(unique), address) == (1, "6b2f9d0e-9f5b-4b6e-8a0e-0d8f0d8f0d8f", "127.0.0.1")
    assert (set(tags), dict(mapping), tuple(home), whole) == ({"a", "b"}, {"k": 1}, ("Berlin", 10115), 5)
    assert (moment, note) == (datetime(2024, 2, 29), None)


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ("id bigint PRIMARY KEY, text int", "text is string, not int"),
        ("id bigint PRIMARY KEY", "the table has no column text"),
        ("id bigint, day int, text text, PRIMARY KEY (id, day)", r"primary key is \(id, day\), not \(id\)"),
        ("id bigint PRIMARY KEY, text counter", "counted twice"),
        ("id bigint PRIMARY KEY, text text, items list<int>", "elements twice when a write is repeated"),
        ("id bigint, day int, text text static, PRIMARY KEY (id, day)", "text is static"),
    ],
)
def test_a_table_that_the_rows_do_not_fit_is_refused_before_anything_is_read(there, reason, ask, table, sink_on):
    ask(f"CREATE TABLE {table} ({there})")
    columns = "id BIGINT, text STRING" + (", items ARRAY<INT>" if "items" in there else "")
    with pytest.raises(ConfigError, match=reason):
        sink_on(key="id").prepare(schema(columns))


@pytest.mark.parametrize("column", ["wall TIMESTAMP_NTZ", "v VARIANT"])
def test_a_type_that_cassandra_does_not_have_is_named(column, ask, sink_on):
    with pytest.raises(ConfigError, match=column.split()[0]):
        sink_on(key="id", create=True).prepare(schema(f"id BIGINT, {column}"))


def test_a_new_table_has_the_key_that_was_named_and_the_newest_offset_first(ask, table, sink_on, cassandra):
    columns = "id BIGINT, _kafka STRUCT<topic: STRING, partition: INT, offset: BIGINT>"
    sink_on(create=True).prepare(schema(columns))
    key = (
        f"SELECT column_name, kind, position, clustering_order FROM system_schema.columns WHERE keyspace_name = 'sink' \
        AND table_name = '{table}%s'"
    )
    assert {("partition", "partition_key", 0, "none"), ("offset", "clustering", 0, "desc")} <= set(ask(key % ""))
    with sinks.Cassandra(cassandra.hosts, f"sink.{table}_b", key=(("a", "b"), "c"), create=True).open("p") as sink:
        sink.prepare(schema("a INT, b INT, c INT"))
    roles = {(name, role, position) for name, role, position, _ in ask(key % "_b")}
    assert roles == {("a", "partition_key", 0), ("b", "partition_key", 1), ("c", "clustering", 0)}


# What is missing


def test_what_is_missing_is_reported_with_a_hint(ask, cassandra, table, sink_on):
    with pytest.raises(ConfigError, match="no such table") as caught:
        sink_on(key="id").prepare(schema("id BIGINT"))
    assert "create=True" in caught.value.hint
    with (
        sinks.Cassandra(cassandra.hosts, "nowhere.rows", key="id", create=True).open("p") as sink,
        pytest.raises(ConfigError, match="no keyspace nowhere"),
    ):
        sink.prepare(schema("id BIGINT"))
    for wrong in (
        {"table": "rows"},
        {"ttl": 0},
        {"key": ("a", ("b", "c"))},
        {"key": "a", "ttl": "a"},
        {"consistency": "ANY"},
    ):
        with pytest.raises(ConfigError):
            sinks.Cassandra(cassandra.hosts, **{"table": "sink.rows", **wrong})
    with pytest.raises(ConfigError, match="cannot be sent to the executors"):
        sinks.Cassandra(cassandra.hosts, "sink.rows", options={"ssl_context": ssl.create_default_context()})


def test_nobody_at_the_address_is_reported_in_seconds():
    began = time.monotonic()
    with pytest.raises(RetriableError):
        sinks.Cassandra(NOBODY, "sink.rows", username="app", password="falsch").open("p")
    assert time.monotonic() - began < 10
    assert "falsch" not in repr(sinks.Cassandra(NOBODY, "sink.rows", username="app", password="falsch"))


# Versions


def test_a_null_takes_the_place_of_a_value_and_an_older_value_does_not_come_back(spark, ask, table, sink_on):
    sink = sink_on(key="id", deleted="gone", create=True)
    text = "CASE WHEN text <> 'none' THEN text END AS text"
    rows = [upserts(spark, (0, 1, "a"), (1, 2, "b")), upserts(spark, (2, 1, "none"), (3, 2, "c"))]
    old, new = (each.selectExpr("id", text, "text = 'c' AS gone", "_kafka") for each in rows)
    sink.write(batch(1, 0, 2), old)
    sink.write(batch(2, 2, 4), new)
    sink.write(batch(1, 0, 2), old)
    assert ask(f"SELECT id, text FROM {table}") == [(1, None)]


def test_offsets_are_compared_within_one_topic_only(spark, ask, table, sink_on):
    sink = sink_on(key="id", create=True)
    sink.write(batch(1, 0, 1), upserts(spark, (0, 1, "a")))
    both = (Range(TopicPartition("clicks", 0), 0, 1), Range(TopicPartition("views", 0), 0, 1))
    with pytest.raises(ConfigError, match="offsets of two topics"):
        sink.write(Batch(2, both, {"clicks": "id-1", "views": "id-2"}), upserts(spark, (0, 1, "b")))
    with pytest.raises(ConfigError, match="_kafka"):
        sink.write(batch(2, 1, 2), upserts(spark, (1, 1, "b")).select("id", "text"))

    anew = Batch(3, (Range(TopicPartition("clicks", 0), 0, 1),), {"clicks": "id-2"})
    sink.write(anew, upserts(spark, (0, 1, "anew")))
    with pytest.raises(OffsetConflict, match="was recreated"):
        sink_on(key="id").write(batch(2, 8, 9), upserts(spark, (8, 1, "of the old topic")))
    assert ask(f"SELECT id, text FROM {table}") == [(1, "anew")]


def test_rows_live_as_long_as_their_column_says(spark, ask, table, sink_on):
    sink = sink_on(key="id", ttl="seconds", create=True)
    rows = frame(spark, numbered(0, 3)).selectExpr("id", "text", "nullif(id * 1000, 2000) AS seconds", "_kafka")
    sink.write(batch(1, 0, 3), rows)
    lives = dict(ask(f"SELECT id, TTL(text) FROM {table}"))
    assert (lives[0], lives[2]) == (None, None)  # 0 and NULL: as long as the table keeps it
    assert 900 < lives[1] <= 1000
    with pytest.raises(BadRecord, match="offset 1: ttl is too large"):
        sink.write(batch(2, 3, 4), rows.where("id = 1").withColumn("seconds", rows.id * 2_000_000_000))


# Rows that Cassandra refuses, and a server that goes away


def pipeline(where, sink, cassandra, **more):
    return hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT, text STRING")),
        sink=sink,
        guarantee="exactly-once",
        offsets=stores.Cassandra(cassandra.hosts, keyspace="sink"),
        **more,
    )


def test_rows_that_cassandra_does_not_take_become_dead_letters_and_those_beside_them_are_stored(
    topic, spark, ask, table, cassandra
):
    ask(f"CREATE TABLE {table} (shop text, id int, text text, PRIMARY KEY (shop, text))")
    where, dead = topic(partitions=1), topic(partitions=1)
    where.produce([{"id": n, "text": f"t{n}"} for n in range(5)])
    where.produce([{"id": 2**40, "text": "too large"}, {"id": 6, "text": "no shop"}, {"id": 7, "text": "k" * 70_000}])
    made = pipeline(
        where,
        sinks.Cassandra(cassandra.hosts, f"sink.{table}", key=("shop", "text")),
        cassandra,
        transform=lambda rows: rows.selectExpr("id", "text", "if(id = 6, '', 'a') AS shop", "_kafka"),
        dead_letters=hr.DeadLetters(topic=dead.name),
    )
    made.run(until="caught-up", session=spark, fail_fast=True)
    assert sorted(number for (number,) in ask(f"SELECT id FROM {table}")) == [0, 1, 2, 3, 4]
    letters = {letter.origin.offset: letter.error for letter in DeadLetterAdmin(made).letters()}
    assert set(letters) == {5, 6, 7}
    assert '"id"' in letters[5]
    assert "Key may not be empty" in letters[6]


def test_a_row_above_what_the_server_takes_is_its_own_fault(spark, ask, table, sink_on):
    with pytest.raises(BadRecord, match=r"offset 1: .*oversized"):
        sink_on(create=True).write(batch(1, 0, 2), frame(spark, [(0, "small"), (1, "x" * 5 * 2**20)]))
    assert ask(f"SELECT id FROM {table}") == [(0,)]


def test_copies_that_are_missing_are_waited_for_and_then_the_batch_is_repeated(spark, ask, table, cassandra):
    replication = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': %s}"
    ask(f"CREATE KEYSPACE k{table} {replication % 3}")
    with sinks.Cassandra(cassandra.hosts, f"k{table}.rows", create=True).open("p") as sink:
        with pytest.raises(RetriableError, match="LOCAL_QUORUM"):
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        ask(f"ALTER KEYSPACE k{table} {replication % 1}")
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert sorted(ask(f"SELECT id, text FROM k{table}.rows")) == numbered(0, 3)


def test_a_connection_that_is_lost_costs_a_repeat_and_no_row(topic, spark, ask, table, cassandra):
    where = topic(partitions=2)
    where.produce([{"id": n, "text": "x"} for n in range(400)])
    with TcpProxy(cassandra.hosts) as proxy:
        cut = CutAfterFirstBatch(proxy)
        made = pipeline(
            where,
            sinks.Cassandra(proxy.address, f"sink.{table}", create=True),
            cassandra,
            limits=hr.Limits(max_records=100),
        )
        made.run(until="caught-up", session=spark, observer=cut)
    assert any(isinstance(error, RetriableError) for error in cut.noticed)
    assert sorted(number for (number,) in ask(f"SELECT id FROM {table}")) == list(range(400))
