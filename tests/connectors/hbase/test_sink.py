"""The HBase sink on a real server: cells and row keys, what is refused and where it goes, lost connections."""

import json
import time
import uuid

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import BadRecord, ConfigError, OffsetConflict, RetriableError
from headrace.testing.sinks import batch, frame, numbered, upserts
from headrace.tools.dead_letters import DeadLetterAdmin
from headrace.types import Batch, Range, TopicPartition
from support.tcp_proxy import CutAfterFirstBatch, TcpProxy


@pytest.fixture(scope="module")
def connection(hbase):
    import happybase

    host, port = hbase.thrift.split(":")
    made = happybase.Connection(host, int(port))
    yield made
    made.close()


@pytest.fixture
def table():
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def cells(connection, table):
    """Every row: its key, and its cells by column."""
    return lambda: {
        key.decode(): {name.decode()[2:]: value for name, value in found.items()}
        for key, found in connection.table(table).scan()
    }


@pytest.fixture
def sink_on(hbase, table):
    made = []

    def make(**settings):
        made.append(sinks.HBase(hbase.thrift, table, **settings).open("p"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def schema(columns):
    from pyspark.sql.types import StructType

    return StructType.fromDDL(columns)


def test_values_are_text_that_people_can_read(spark, cells, sink_on):
    full = spark.sql(
        """SELECT 1 AS id, true AS bool, 9223372036854775807L AS big, CAST('NaN' AS DOUBLE) AS double, 0.1D AS tenth,
        -0.000000001234BD AS dec, 'naïve "😀"' AS text, '' AS empty, X'00FF7C' AS bytes, DATE'2024-02-29' AS day,
        TIMESTAMP'2024-03-31 01:30:00.123456 UTC' AS at, TIMESTAMP_NTZ'2024-03-31 02:30:00' AS wall,
        array(1, NULL) AS items, map(1, X'00FF') AS m, map() AS nothing,
        named_struct('a', CAST(NULL AS INT), 'b', array(DATE'2024-02-29')) AS s, CAST(NULL AS STRING) AS none"""
    )
    full = full.withColumn("nothing", full.nothing.cast("map<string, int>"))
    sink_on(key="id", create=True).write(batch(1, 0, 1), full)
    found = cells()["1"]
    nested = {name: json.loads(found.pop(name)) for name in ("items", "m", "nothing", "s")}
    assert nested == {"items": [1, None], "m": {"1": "AP8="}, "nothing": {}, "s": {"a": None, "b": ["2024-02-29"]}}
    assert found.pop("bytes") == b"\x00\xff|"
    assert {name: value.decode() for name, value in found.items()} == {
        "id": "1",
        "bool": "true",
        "big": "9223372036854775807",
        "double": "NaN",
        "tenth": "0.1",
        "dec": "-0.000000001234",
        "text": 'naïve "😀"',
        "empty": "",
        "day": "2024-02-29",
        "at": "2024-03-31T01:30:00.123456Z",
        "wall": "2024-03-31T02:30:00",
    }


def test_a_row_key_of_several_columns_is_never_that_of_another_row(spark, cells, sink_on):
    rows = spark.createDataFrame([("a|b", "c"), ("a", "b|c"), ("a\\", "|"), ("a\\|", "")], "x STRING, y STRING")
    sink_on(key=("x", "y"), create=True).write(batch(1, 0, 4), rows)
    assert set(cells()) == {"a\\|b|c", "a|b\\|c", "a\\\\|\\|", "a\\\\\\||"}


def test_a_record_has_its_topic_partition_and_offset_as_its_key(spark, cells, sink_on):
    sink_on(create=True).write(batch(1, 7, 8), frame(spark, [(7, "x")]))
    assert cells() == {"clicks|0|7": {"topic": b"clicks", "partition": b"0", "offset": b"7", "id": b"7", "text": b"x"}}


# Versions


def test_a_null_takes_the_cell_away_and_an_older_value_does_not_come_back(spark, cells, sink_on):
    sink = sink_on(key="id", deleted="gone", create=True)
    text = "CASE WHEN text <> 'none' THEN text END AS text"
    rows = [upserts(spark, (0, 1, "a"), (1, 2, "b")), upserts(spark, (2, 1, "none"), (3, 2, "c"))]
    old, new = (each.selectExpr("id", text, "text = 'c' AS gone", "_kafka") for each in rows)
    sink.write(batch(1, 0, 2), old)
    sink.write(batch(2, 2, 4), new)
    for _ in range(2):
        sink.write(batch(1, 0, 2), old)
        sink.write(batch(2, 2, 4), new)
        assert cells() == {"1": {"id": b"1"}}
    later = upserts(spark, (4, 1, "again"), (5, 2, "again")).selectExpr("id", "text", "false AS gone", "_kafka")
    sink.write(batch(3, 4, 6), later)
    assert cells() == {"1": {"id": b"1", "text": b"again"}, "2": {"id": b"2", "text": b"again"}}


def test_offsets_are_compared_within_one_topic_and_take_the_place_of_what_others_wrote(
    spark, cells, sink_on, connection, table
):
    sink = sink_on(key="id", create=True)
    sink.prepare(schema("id BIGINT, text STRING"))
    connection.table(table).put(b"1", {b"d:text": b"by hand"})
    sink.write(batch(1, 0, 1), upserts(spark, (0, 1, "a")))
    assert cells()["1"]["text"] == b"a"
    both = (Range(TopicPartition("clicks", 0), 0, 1), Range(TopicPartition("views", 0), 0, 1))
    with pytest.raises(ConfigError, match="offsets of two topics"):
        sink.write(Batch(2, both, {"clicks": "id-1", "views": "id-2"}), upserts(spark, (0, 1, "b")))
    with pytest.raises(ConfigError, match="_kafka"):
        sink.write(batch(2, 1, 2), upserts(spark, (1, 1, "b")).select("id", "text"))
    anew = Batch(3, (Range(TopicPartition("clicks", 0), 0, 1),), {"clicks": "id-2"})
    sink.write(anew, upserts(spark, (0, 1, "anew")))
    with pytest.raises(OffsetConflict, match="was recreated"):
        sink.write(batch(4, 8, 9), upserts(spark, (8, 1, "of the old topic")))
    assert cells()["1"]["text"] == b"anew"


# What is missing


def test_what_is_missing_is_reported_with_a_hint(spark, connection, table, sink_on, hbase):
    with pytest.raises(ConfigError, match="no such table") as caught:
        sink_on(key="id").prepare(schema("id BIGINT"))
    assert "create=True" in caught.value.hint
    connection.create_table(table, {"other": {}, "short": {"time_to_live": 3600}})
    with pytest.raises(ConfigError, match="no column family d; it has: other, short"):
        sink_on(key="id", create=True).prepare(schema("id BIGINT"))
    with pytest.raises(ConfigError, match="expire after 3600 seconds"):
        sink_on(key="id", family="short").write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
    with pytest.raises(ConfigError, match="months"):
        sink_on(key="id", family="other").prepare(schema("id BIGINT, months INTERVAL YEAR TO MONTH"))
    connection.disable_table(table)
    with pytest.raises(ConfigError, match="disabled"):
        sink_on(key="id", family="other").prepare(schema("id BIGINT"))
    for wrong in ({"thrift": "host:port"}, {"table": ""}, {"family": "a:b"}, {"deleted": "gone"}):
        with pytest.raises(ConfigError):
            sinks.HBase(**{"thrift": hbase.thrift, "table": table, **wrong})


def test_a_gateway_that_is_not_there_is_reported_in_seconds():
    began = time.monotonic()
    with pytest.raises(RetriableError, match=r"sinks\.HBase"):
        sinks.HBase("127.0.0.1:1", "rows").open("p")
    assert time.monotonic() - began < 10


# Rows that HBase refuses, and a gateway that goes away


def pipeline(where, sink, hbase, **more):
    return hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT, text STRING")),
        sink=sink,
        guarantee="exactly-once",
        offsets=stores.HBase(hbase.thrift),
        **more,
    )


def test_rows_whose_key_hbase_does_not_take_become_dead_letters(topic, spark, cells, table, hbase):
    where, dead = topic(partitions=1), topic(partitions=1)
    where.produce([{"id": n, "text": f"t{n}"} for n in range(5)])
    where.produce([{"id": 5, "text": ""}, {"id": 6, "text": "k" * 33_000}, {"id": 7, "text": "last"}])
    sink = sinks.HBase(hbase.thrift, table, key="text", create=True)
    made = pipeline(where, sink, hbase, dead_letters=hr.DeadLetters(topic=dead.name))
    made.run(until="caught-up", session=spark, fail_fast=True)
    assert set(cells()) == {"t0", "t1", "t2", "t3", "t4", "last"}
    letters = {letter.origin.offset: letter.error for letter in DeadLetterAdmin(made).letters()}
    assert set(letters) == {5, 6}
    assert "Row length" in letters[6]


def test_a_cell_that_is_too_large_is_its_own_rows_fault(spark, cells, sink_on):
    with pytest.raises(BadRecord, match=r"offset 1: .*too large"):
        sink_on(create=True).write(batch(1, 0, 2), frame(spark, [(0, "small"), (1, "x" * 11_000_000)]))
    assert set(cells()) == {"clicks|0|0"}


def test_a_connection_that_is_lost_costs_a_repeat_and_no_row(topic, spark, cells, table, hbase):
    where = topic(partitions=2)
    where.produce([{"id": n, "text": "x"} for n in range(400)])
    with TcpProxy(hbase.thrift) as proxy:
        cut = CutAfterFirstBatch(proxy)
        sink = sinks.HBase(proxy.address, table, create=True)
        made = pipeline(where, sink, hbase, limits=hr.Limits(max_records=100))
        made.run(until="caught-up", session=spark, observer=cut)
    assert any(isinstance(error, RetriableError) for error in cut.noticed)
    assert sorted(int(row["id"]) for row in cells().values()) == list(range(400))
