"""The Redis sink on a real server: what is stored, what a guard lets through, and what faults leave."""

import json
import time
import uuid
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
import redis as driver

import headrace as hr
from headrace import dev, sinks, stores
from headrace.connectors.redis.writer import AppendTask, RedisTarget, RedisWriter
from headrace.connectors.shared.keyed_sink import Row
from headrace.core.dead_letters import DeadLetter, DeadLetterBatch, RecordId
from headrace.errors import BadRecord, ConfigError, RetriableError
from headrace.spark.origin_columns import ORIGIN_COLUMNS
from headrace.spark.tasks import map_in_arrow, report_of
from headrace.testing.sinks import batch, frame, numbered, upserts
from headrace.types import Range, TopicPartition


@pytest.fixture
def name():
    return f"n-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(redis):
    with driver.Redis.from_url(redis.url, decode_responses=True) as made:
        yield made


def pipeline(where, sink, **more):
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT, user STRING"))
    return hr.Pipeline(name=f"p-{uuid.uuid4().hex[:8]}", source=source, sink=sink, guarantee="exactly-once", **more)


def written(sink, number, start, until, rows):
    with sink.open("pipeline") as opened:
        opened.write(batch(number, start, until), rows)


# Keys and values


def test_keys_that_differ_stay_apart_whatever_is_in_them(spark, redis, client, name):
    rows = spark.createDataFrame(
        [("a:b", "c", 1), ("a", "b:c", 2), ("a%3Ab", "c", 3)], "one STRING, two STRING, id INT"
    )
    written(sinks.Redis(redis.url, name, structure="string", key=("one", "two")), 1, 0, 3, rows)
    keys = sorted(client.scan_iter(f"{name}:*", count=1_000))
    assert keys == [f"{name}:a%253Ab:c", f"{name}:a%3Ab:c", f"{name}:a:b%3Ac"]
    assert json.loads(client.get(f"{name}:a:b%3Ac")) == {"one": "a", "two": "b:c", "id": 2}


VALUES = """SELECT 7 AS id, true AS flag, CAST('NaN' AS DOUBLE) AS double, 1.10BD AS dec, 'é"' AS text,
    X'00FF' AS bytes, DATE'2024-02-29' AS day, TIMESTAMP'2024-03-31 01:30:00.5 UTC' AS at,
    TIMESTAMP_NTZ'2024-03-31 02:30:00' AS wall,
    array(1, NULL) AS list, map('k', DATE'2024-02-29') AS map, named_struct('a', NULL, 'b', X'00FF') AS struct,
    CAST(NULL AS STRING) AS nothing"""


def test_every_type_is_a_field_or_json_and_null_is_no_field(spark, redis, name):
    for structure in ("hash", "string"):
        sink = sinks.Redis(redis.url, f"{name}-{structure}", structure=structure, key="id")
        written(sink, 1, 0, 1, spark.sql(VALUES))
    with driver.Redis.from_url(redis.url) as raw:
        fields = raw.hgetall(f"{name}-hash:7")
        row = json.loads(raw.get(f"{name}-string:7"))
    assert {field.decode(): value for field, value in fields.items()} == {
        "id": b"7",
        "flag": b"true",
        "double": b"NaN",
        "dec": b"1.10",
        "text": 'é"'.encode(),
        "bytes": b"\x00\xff",
        "day": b"2024-02-29",
        "at": b"2024-03-31T01:30:00.500000Z",
        "wall": b"2024-03-31T02:30:00",
        "list": b"[1,null]",
        "map": b'{"k":"2024-02-29"}',
        "struct": b'{"a":null,"b":"AP8="}',
    }
    assert row["nothing"] is None
    assert (row["flag"], row["double"], row["dec"], row["bytes"]) == (True, "NaN", "1.10", "AP8=")
    assert (row["list"], row["map"]) == ([1, None], {"k": "2024-02-29"})


def test_a_type_without_a_place_is_refused_before_anything_is_read(spark, redis, name):
    rows = spark.sql("SELECT 1 AS id, INTERVAL '1' DAY AS apart")
    with pytest.raises(ConfigError, match="apart is interval day"):
        sinks.Redis(redis.url, name, key="id").prepare(rows.schema)


def test_an_upsert_replaces_the_whole_hash(spark, redis, client, name):
    sink = sinks.Redis(redis.url, name, key="id")
    written(sink, 1, 0, 1, frame(spark, [(0, "a")]))
    written(sink, 2, 1, 2, spark.sql("SELECT 0L AS id, 'b' AS other"))
    assert client.hgetall(f"{name}:0") == {"id": "0", "other": "b"}


def test_rows_live_as_long_as_their_ttl_and_their_guards_longer(spark, redis, client, name):
    rows = frame(spark, numbered(0, 2)).selectExpr("*", "IF(id = 0, 100, NULL) AS lives")
    written(sinks.Redis(redis.url, name, key="id", ttl="lives", keep_deleted=1_000), 1, 0, 2, rows)
    assert 0 < client.ttl(f"{name}:0") <= 100
    assert 1_000 < client.ttl(f"headrace:guard:{{{name}:0}}") <= 1_100
    assert (client.ttl(f"{name}:1"), client.ttl(f"headrace:guard:{{{name}:1}}")) == (-1, -1)
    assert client.hgetall(f"{name}:0") == {"id": "0", "text": "row 0"}
    with pytest.raises(BadRecord, match="offset 0: lives is -1"):
        written(
            sinks.Redis(redis.url, name, key="id", ttl="lives"), 2, 0, 1, rows.selectExpr("id", "-1 AS lives", "_kafka")
        )


@pytest.mark.parametrize("lives", ["CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS DOUBLE)", "1.7e18"])
def test_a_time_to_live_that_redis_has_no_clock_for_is_refused_before_the_row_is_written(
    lives, spark, redis, client, name
):
    rows = frame(spark, numbered(0, 1)).selectExpr("id", f"{lives} AS lives", "_kafka")
    with pytest.raises(BadRecord, match=r"offset 0: lives is .* up to 100 years"):
        written(sinks.Redis(redis.url, name, key="id", ttl="lives"), 1, 0, 1, rows)
    assert not client.exists(f"{name}:0")


def test_several_rows_of_one_record_are_noticed_in_whatever_order_a_function_hands_them_on(topic, spark, redis, name):
    where = topic(partitions=1)
    where.produce([{"id": n} for n in range(3)])

    def twice(rows):
        def all_and_again(pieces):
            found = list(pieces)
            yield from found
            yield from found

        return map_in_arrow(rows, all_and_again, rows.schema.simpleString())

    with pytest.raises(ConfigError, match="several rows come from one record"):
        pipeline(where, sinks.Redis(redis.url, name), transform=twice, offsets=stores.Memory()).run(
            until="caught-up", session=spark, fail_fast=True
        )


def test_that_a_row_was_deleted_is_remembered_beside_it_and_not_forever(spark, redis, client, name):
    sink = sinks.Redis(redis.url, name, key="id", keep_deleted=50)
    written(sink, 1, 0, 2, upserts(spark, (0, 1, "a"), (1, 1, None)))
    assert not client.exists(f"{name}:1")
    assert 0 < client.ttl(f"headrace:guard:{{{name}:1}}") <= 50


def test_rows_with_a_flag_delete(spark, redis, client, name):
    sink = sinks.Redis(redis.url, name, key="id", deleted="gone")
    rows = upserts(spark, (0, 1, "a"), (1, 2, "b"))
    written(sink, 1, 0, 2, rows.selectExpr("id", "text", "false AS gone", "_kafka"))
    later = upserts(spark, (2, 1, "a")).selectExpr("id", "text", "true AS gone", "_kafka")
    written(sink, 2, 2, 3, later)
    assert [client.hgetall(key) for key in client.scan_iter(f"{name}:*")] == [{"id": "2", "text": "b"}]


# Streams and lists


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_a_stream_has_every_row_once_and_each_partition_in_order(wide, topic, spark, redis, client, name, tmp_path):
    where = topic(partitions=3)
    where.produce([{"id": n, "user": f"u{n}"} for n in range(3_000)])

    def twice(rows):
        made = rows.where("id % 2 = 0").selectExpr("id", "posexplode(array('a', 'b')) AS (place, letter)", "_kafka")
        return made.repartition(5) if wide else made

    sink = sinks.Redis(redis.url, name, structure="stream", origin="source")
    made = pipeline(where, sink, transform=twice, offsets=stores.SQLite(tmp_path / "offsets.db"))
    made.run(until="caught-up", session=spark, fail_fast=True)
    entries = [row for _, row in client.xrange(name)]
    assert len(entries) == 3_000
    by_partition = {}
    for row in entries:
        _, partition, offset = row["source"].rsplit(":", 2)
        by_partition.setdefault(partition, []).append((int(offset), int(row["place"])))
    if wide:
        by_partition = {at: [offset for offset, _ in found] for at, found in by_partition.items()}
    assert len(by_partition) == 3
    assert all(found == sorted(found) for found in by_partition.values())

    # Offsets that were lost: everything is read again, and what is there is not appended again.
    again = replace(made, offsets=stores.SQLite(tmp_path / "other.db"))
    assert again.run(until="caught-up", session=spark, fail_fast=True).records == 3_000
    assert client.xlen(name) == 3_000


def arrow(first, until, times=1):
    rows = [(n, n) for n in range(first, until) for _ in range(times)]
    return pa.RecordBatch.from_pydict(
        {
            "id": [number for number, _ in rows],
            ORIGIN_COLUMNS[0]: ["clicks"] * len(rows),
            ORIGIN_COLUMNS[1]: [0] * len(rows),
            ORIGIN_COLUMNS[2]: [offset for _, offset in rows],
        }
    )


@pytest.fixture
def append(redis, name):
    at = Range(TopicPartition("clicks", 0), 0, 100_000)
    target = RedisTarget(redis.url, name, "sink")
    task = AppendTask(target, "stream", "p", {"id": int}, (at,), {"clicks": "id-1"}, 0, None, None, None)
    return partial(report_of, task)


def test_a_task_that_wakes_up_after_its_successor_appends_nothing(append, client, name):
    def frozen():
        yield arrow(0, 700)
        assert 0 < client.xlen(name) <= 700, "it froze before it wrote"
        append(iter([arrow(0, 2_000)]))
        yield arrow(700, 2_000)

    assert append(frozen()).error is None
    assert [int(row["id"]) for _, row in client.xrange(name)] == list(range(2_000))


def test_a_repeat_that_is_cut_elsewhere_appends_the_rest_and_no_record_in_half(append, client, name):
    def dies():
        yield arrow(0, 333, times=3)
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        append(dies())
    there = [int(row["id"]) for _, row in client.xrange(name)]
    assert there and len(there) % 3 == 0, "some records are there, and none of them in part"
    append(iter([arrow(0, 10, times=3), arrow(10, 1_000, times=3)]))
    assert [int(row["id"]) for _, row in client.xrange(name)] == [n for n in range(1_000) for _ in range(3)]


def test_a_row_with_an_offset_that_is_not_in_the_batch_is_refused(append):
    kind, message, _ = report_of(append, iter([arrow(100_000, 100_001)])).error
    assert kind == "ConfigError" and "offset 100000, which is not in this batch" in message


@pytest.fixture
def without(redis, client, name):
    """The URL of a user who may run every command but one."""
    made = []

    def user(command):
        made.append(f"{name}-{command}")
        client.execute_command("ACL", "SETUSER", made[-1], "on", ">pw", "~*", "+@all", f"-{command}")
        return f"redis://{made[-1]}:pw@{redis.url.rpartition('@')[2]}"

    yield user
    for one in made:
        client.execute_command("ACL", "DELUSER", one)


def stored(client, name, structure):
    return client.lrange(name, 0, -1) if structure == "list" else [row["id"] for _, row in client.xrange(name)]


@pytest.mark.parametrize(
    ("structure", "command"), [("stream", "xtrim"), ("stream", "hset"), ("list", "ltrim"), ("list", "rpush")]
)
def test_a_missing_right_is_found_before_anything_is_appended(structure, command, append, without, client, name):
    (task,) = append.args
    whole = replace(task, structure=structure, maxlen=1_000)
    lacking = replace(whole, target=RedisTarget(without(command), name, "sink"))
    for _ in range(2):
        kind, message, hint = report_of(lacking, iter([arrow(0, 5)])).error
        assert kind == "ConfigError" and "rights" in hint
        assert "password" not in message, "the user was to get in"
        assert stored(client, name, structure) == []
    assert report_of(whole, iter([arrow(0, 5)])).error is None
    assert len(stored(client, name, structure)) == 5


def test_an_append_that_fails_half_way_goes_on_where_it_stopped(append, client, name):
    """The stream has ids left for four entries: the second record is appended in part."""
    client.xadd(name, {"id": "first"}, id="18446744073709551615-18446744073709551611")
    for _ in range(3):
        kind, message, _ = report_of(append, iter([arrow(0, 5, times=3)])).error
        assert kind == "ConfigError" and "exhausted" in message
        assert stored(client, name, "stream") == ["first", "0", "0", "0", "1"]
    # What an operator would do: entries are copied to a stream with ids of its own.
    client.delete(name)
    assert append(iter([arrow(0, 5, times=3)])).error is None
    assert stored(client, name, "stream") == ["1", "1", *(str(n) for n in range(2, 5) for _ in range(3))]


def test_a_row_with_more_fields_than_an_entry_takes_is_refused_and_the_others_are_there_once(append, client, name):
    names = [f"c{n}" for n in range(4_000)]
    (task,) = append.args
    wide = replace(task, converters={"id": int, **dict.fromkeys(names, int)}, limit=10)
    columns = {one: pa.array([None, 7, None], pa.int64()) for one in names}
    rows = pa.RecordBatch.from_pydict({**arrow(0, 3).to_pydict(), **columns})
    for _ in range(2):
        report = report_of(wide, iter([rows]))
        assert report.error is None
        assert [(origin.offset, reason) for origin, reason in report.refused] == [
            (1, "an entry of a stream takes up to 3,950 fields, and this row has 4,001")
        ]
        assert stored(client, name, "stream") == ["0", "2"]


@pytest.mark.parametrize(("structure", "command"), [("hash", "hset"), ("hash", "pexpire"), ("string", "set")])
def test_a_row_is_not_lost_to_a_missing_right(structure, command, redis, without, client, name):
    plain = {"id": int, "text": str}
    put = RedisWriter(RedisTarget(redis.url, name, "sink"), structure, ("id",), plain, True, 1_000, 1_000.0)

    def row(text, version):
        return Row((7,), {"id": 7, "text": text}, None, "clicks:0", version)

    def there():
        return client.hgetall(f"{name}:7") if structure == "hash" else client.get(f"{name}:7")

    assert put([row("old", 1)]) == []
    before = there()
    with pytest.raises(ConfigError, match=r"^(?!.*password)"):  # the user gets in
        replace(put, target=RedisTarget(without(command), name, "sink"))([row("new", 2)])
    assert there() == before
    assert put([row("new", 2)]) == []
    assert "new" in str(there())


def test_pipelines_that_share_a_topic_and_a_stream_do_not_hide_each_others_rows(spark, redis, client, name):
    for number, pipeline_name in enumerate(["one", "other", "one"]):
        with sinks.Redis(redis.url, name, structure="stream").open(pipeline_name) as sink:
            sink.write(batch(number, 0, 2), frame(spark, numbered(0, 2)))
    assert client.xlen(name) == 4


@pytest.mark.parametrize(("structure", "most"), [("stream", 400), ("list", 10)])
def test_what_is_appended_is_cut_to_its_greatest_length(structure, most, spark, redis, client, name):
    sink = sinks.Redis(redis.url, name, structure=structure, maxlen=10)
    written(sink, 1, 0, 1_000, frame(spark, numbered(0, 1_000)))
    length = client.xlen(name) if structure == "stream" else client.llen(name)
    assert 10 <= length <= most  # a stream is cut in whole nodes


def test_a_set_of_one_column(spark, redis, client, name):
    rows = frame(spark, [(1, "a"), (2, "b"), (3, "a"), (4, None)])
    sink = sinks.Redis(redis.url, name, structure="set", member="text")
    written(sink, 1, 0, 4, rows.where("text IS NOT NULL"))
    assert client.smembers(name) == {"a", "b"}
    with pytest.raises(BadRecord, match=r"offset 4: text, which is the member of the set, is NULL"):
        written(sink, 2, 4, 5, rows)


# Rows that are refused


class Letters:
    def __init__(self):
        self.sent = []

    def quarantine(self):
        def originals(refused):
            return [DeadLetter(r.origin, None, None, None, (), r.error, r.place) for r in refused]

        return DeadLetterBatch([], limit=10, fetch_records=originals, send=self.sent.extend)


def test_a_key_that_holds_something_else_is_left_alone_and_its_row_refused(spark, redis, client, name):
    client.rpush(f"{name}:1", "mine")
    letters = Letters()
    with sinks.Redis(redis.url, name, key="id").open("p") as sink:
        with pytest.raises(BadRecord, match=r"offset 1: WRONGTYPE.*as a list, not a hash"):
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write_with_dead_letters(batch(1, 0, 3), frame(spark, numbered(0, 3)), letters.quarantine())
    assert [letter.origin for letter in letters.sent] == [RecordId("clicks", 0, 1)]
    assert client.lrange(f"{name}:1", 0, -1) == ["mine"]
    assert client.hgetall(f"{name}:2") == {"id": "2", "text": "row 2"}


def test_an_entry_without_a_field_is_refused_and_the_others_are_appended(spark, redis, client, name):
    rows = frame(spark, numbered(0, 3)).selectExpr("IF(id = 1, NULL, id) AS id", "_kafka")
    letters = Letters()
    for _ in range(2):
        with sinks.Redis(redis.url, name, structure="stream").open("p") as sink:
            sink.write_with_dead_letters(batch(1, 0, 3), rows, letters.quarantine())
    assert [row["id"] for _, row in client.xrange(name)] == ["0", "2"]
    assert [letter.origin.offset for letter in letters.sent] == [1, 1], "a repeat says it again"


@pytest.mark.parametrize("structure", ["stream", "list", "set"])
def test_a_row_with_a_value_that_python_has_none_for_is_refused_and_the_others_are_there(
    structure, spark, redis, client, name
):
    rows = frame(spark, numbered(0, 3)).selectExpr(
        "id", "IF(id = 1, DATE'+10000-01-01', DATE'2024-02-29') AS day", "_kafka"
    )
    letters = Letters()
    with sinks.Redis(redis.url, name, structure=structure).open("p") as sink:
        sink.write_with_dead_letters(batch(1, 0, 3), rows, letters.quarantine())
    assert [letter.origin.offset for letter in letters.sent] == [1]
    count = {"stream": client.xlen, "list": client.llen, "set": client.scard}[structure]
    assert count(name) == 2


def test_a_stream_whose_key_holds_something_else_is_a_config_error(spark, redis, client, name):
    client.set(name, "mine")
    with pytest.raises(ConfigError, match="WRONGTYPE"):
        written(sinks.Redis(redis.url, name, structure="stream"), 1, 0, 1, frame(spark, numbered(0, 1)))
    assert client.get(name) == "mine"


# Faults of the server


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with dev.Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def asked(own):
    with driver.Redis.from_url(own.url, decode_responses=True) as made:
        yield made


def test_a_wrong_password_is_a_config_error_that_does_not_show_it(own):
    for url in (own.url.replace(f":{own.password}@", ""), own.url.replace(own.password, "wr0ng")):
        with pytest.raises(ConfigError, match=r"(?i)password|auth") as found:
            sinks.Redis(url, "n").open("p")
        assert "wr0ng" not in str(found.value)


@pytest.mark.parametrize("structure", ["hash", "stream"])
def test_a_server_that_cannot_write_now_is_asked_again_and_then_has_every_row(structure, own, asked, spark, name):
    rows = frame(spark, numbered(0, 3))
    with sinks.Redis(own.url, name, structure=structure).open("p") as sink:
        asked.config_set("maxmemory", "1")
        with pytest.raises(RetriableError, match=r"OOM|maxmemory"):
            sink.write(batch(1, 0, 3), rows)
        asked.config_set("maxmemory", "0")
        asked.replicaof("127.0.0.1", "1")
        with pytest.raises(RetriableError, match=r"READONLY|read only"):
            sink.write(batch(1, 0, 3), rows)
        asked.replicaof("NO", "ONE")
        sink.write(batch(1, 0, 3), rows)
    assert (asked.xlen(name) if structure == "stream" else len(list(asked.scan_iter(f"{name}:*")))) == 3


def test_a_killed_server_is_noticed_soon_and_a_restarted_one_gets_the_scripts_again(own, asked, spark, name):
    with sinks.Redis(own.url, name, structure="stream").open("p") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        own.kill()
        began = time.monotonic()
        with pytest.raises(RetriableError):
            sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
        with pytest.raises(RetriableError):
            sinks.Redis(own.url, name).open("p")
        assert time.monotonic() - began < 15
        own.start()
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
    assert [row["id"] for _, row in asked.xrange(name)] == ["0", "1", "2", "3"]


def test_a_node_of_a_cluster_is_refused(tmp_path):
    with (
        dev.Redis(tmp_path, options={"cluster-enabled": "yes"}) as server,
        pytest.raises(ConfigError, match="node of a cluster"),
    ):
        sinks.Redis(server.url, "n").open("p")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a{b}"}, "without braces"),
        ({"name": "headrace:x"}, "headrace:"),
        ({"structure": "zset"}, "structure: expected one of"),
        ({"structure": "stream", "key": "id"}, "key= has no effect"),
        ({"maxlen": 5}, "maxlen= has no effect"),
        ({"structure": "list", "maxlen": 0}, "maxlen: expected a whole number of entries"),
        ({"structure": "list", "maxlen": 2**63}, "maxlen: expected a whole number of entries"),
        ({"ttl": -1}, "ttl: expected a number of seconds above 0"),
        ({"ttl": 1e18}, "and up to 3,"),
        ({"deleted": "gone"}, "never deleted"),
        ({"url": "localhost"}, "URL"),
    ],
)
def test_what_cannot_work_is_reported_when_the_sink_is_made(arguments, message):
    with pytest.raises(ConfigError, match=message):
        sinks.Redis(**{"url": "redis://localhost", "name": "users", **arguments})
