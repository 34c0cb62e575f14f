"""Formats on real Spark: what is good, what is bad, and that no bad record passes unseen."""

import datetime
import json

import pytest

import headrace as hr
from headrace import events, sinks, stores
from headrace.errors import BadRecord, ConfigError
from headrace.spark import plan
from headrace.spark.rows import RAW_SCHEMA, bad_record, columns, decode

JSON = "user STRING, n INT, at TIMESTAMP, price DECIMAL(5,2), ok BOOLEAN, tags ARRAY<STRING>"

GOOD = {
    "all fields": (
        b'{"user": "ann", "n": 1, "at": "2024-05-06T07:08:09Z", "price": 1.25, "ok": true, "tags": ["a"]}',
        ("ann", 1, datetime.datetime(2024, 5, 6, 7, 8, 9), "1.25", True, ["a"]),
    ),
    "missing fields are null": (b'{"user": "ann"}', ("ann", None, None, None, None, None)),
    "null fields are null": (b'{"user": null, "n": null}', (None,) * 6),
    "unknown fields are ignored": (b'{"user": "ann", "extra": {"deep": [1]}}', ("ann",) + (None,) * 5),
    "an empty object is a row": (b"{}", (None,) * 6),
    "leading space": (b'  {"n": 2}', (None, 2) + (None,) * 4),
    "leading and trailing lines": (b'\r\n\t {"n": 3}\n', (None, 3) + (None,) * 4),
    "every script": ('{"user": "naïve ✓ 漢字 😀"}'.encode(), ("naïve ✓ 漢字 😀",) + (None,) * 5),
    "escapes": (b'{"user": "a\\u00e9\\n\\"b\\""}', ('aé\n"b"',) + (None,) * 5),
    "a tombstone is a row of nulls": (None, (None,) * 6),
}
BAD = {
    "not JSON": b"hello",
    "cut off": b'{"user": "ann", "n"',
    "an array": b'[{"user": "ann"}]',
    "a number": b"5",
    "a text": b'"ann"',
    "null": b"null",
    "true": b"true",
    "nothing": b"",
    "blank": b" \n\t ",
    "a text where a number is meant": b'{"user": "ann", "n": "many"}',
    "a fraction where a whole number is meant": b'{"n": 1.5}',
    "a number too large for its type": b'{"n": 99999999999}',
    "a decimal too large for its type": b'{"price": 12345.67}',
    "a time that is none": b'{"at": "yesterday"}',
    "a truth that is none": b'{"ok": "yes"}',
    "an object where a list is meant": b'{"tags": {"a": 1}}',
    "not UTF-8": b'{"user": "\xff\xfe"}',
    "not UTF-8 at all": b"\x00\xff\x80",
    "two objects": b'{"user": "ann"}{"user": "bob"}',
    "two lines": b'{"user": "ann"}\n{"user": "bob"}',
    "something behind the object": b'{"user": "ann"} and so on',
}


def raw(spark, values):
    rows = [(None, value, "clicks", 3, offset, None, 0, None) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW_SCHEMA)


def decoded(spark, fmt, values):
    return decode(raw(spark, values), fmt, columns(spark, fmt))


@pytest.fixture(scope="module")
def kept(spark):
    """Every record above by its name, decoded with on_error="keep"."""
    values = {**{name: value for name, (value, _) in GOOD.items()}, **BAD}
    rows = decoded(spark, hr.Json(JSON, on_error="keep"), list(values.values())).rows.collect()
    assert len(rows) == len(values)
    return {name: next(row for row in rows if row["_kafka"]["offset"] == at) for at, name in enumerate(values)}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_record_is_decoded(kept, name):
    row = kept[name]
    price = None if row["price"] is None else str(row["price"])
    assert row["bad"] is None
    assert (row["user"], row["n"], row["at"], price, row["ok"], row["tags"]) == GOOD[name][1]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_kept_apart_with_its_bytes_and_the_reason(kept, name):
    row = kept[name]
    assert row["bad"] is not None
    assert bytes(row["bad"]["value"]) == BAD[name]
    assert row["bad"]["error"].startswith("not ")
    assert [row[field] for field in ("user", "n", "at", "price", "ok", "tags")] == [None] * 6


def test_dropping_leaves_the_good_records_and_counts_the_bad_ones(spark):
    known = ["not JSON", "an array", "nothing", "not UTF-8", "a text where a number is meant"]
    values = [b'{"n": 1}', *(BAD[name] for name in known), None, b'{"n": 2}']
    found = decoded(spark, hr.Json("n INT", on_error="drop"), values)
    assert [row["n"] for row in found.rows.collect()] == [1, None, 2]
    assert found.dropped() == len(known)


def test_the_count_of_a_frame_that_nobody_read_is_zero_and_does_not_wait(spark):
    assert decoded(spark, hr.Json("n INT", on_error="drop"), [b"bad"]).dropped() == 0


def failure(frame):
    try:
        frame.collect()
    except Exception as error:
        return bad_record(error)
    return None


TRANSFORMS = {
    "as it is": lambda rows: rows,
    "one that uses no decoded column": lambda rows: rows.selectExpr("1 AS one"),
    "one that uses the origin alone": lambda rows: rows.selectExpr("_kafka.offset"),
    "one that filters the bad rows away": lambda rows: rows.where("n = 1"),
    "one that filters by the origin": lambda rows: rows.where("_kafka.offset = 0"),
    "a count": lambda rows: rows.groupBy().count(),
    "a group": lambda rows: rows.groupBy("n").count(),
    "a join with itself": lambda rows: rows.join(rows.groupBy("n").count(), "n"),
    "a union": lambda rows: rows.union(rows),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_failing_shows_topic_partition_offset_and_bytes_whatever_the_transform_does(spark, name):
    found = decoded(spark, hr.Json("n INT"), [b'{"n": 1}', b'{"n": 2}', b'{"n": "\x00many"}'])
    error = failure(TRANSFORMS[name](found.rows))
    assert isinstance(error, BadRecord)
    assert "clicks[3] offset 2" in error.message
    assert repr(b'{"n": "\x00many"}') in error.message
    assert "drop" in error.hint
    assert "keep" in error.hint


def test_a_long_bad_record_is_shown_in_part(spark):
    error = failure(decoded(spark, hr.Json("n INT"), [b"x" * 5000]).rows)
    assert "and 4800 bytes more" in error.message
    assert len(error.message) < 500


def test_an_error_that_is_no_bad_record_is_not_taken_for_one():
    assert bad_record(ValueError("something else")) is None


@pytest.mark.parametrize("on_error", ["fail", "drop", "keep"])
def test_a_record_is_parsed_once_though_the_transform_filters(spark, on_error):
    rows = decoded(spark, hr.Json("user STRING, n INT", on_error=on_error), [b"{}"]).rows
    frame = rows.where("n > 1 AND user IS NOT NULL").selectExpr("upper(user) AS user", "n + 1 AS n")
    assert frame._jdf.queryExecution().executedPlan().toString().count("from_json(") == 1


ODD = [
    "two words",
    "a.b",
    "tick`tick",
    "it's",
    'say "hi"',
    "back\\slash",
    "naïve",
    "select",
    "value",
    "decoded",
    "error",
]


@pytest.mark.parametrize("on_error", ["fail", "drop", "keep"])
def test_columns_with_odd_names_come_through(spark, on_error):
    ddl = ", ".join(f"`{name.replace('`', '``')}` INT" for name in ODD)
    value = json.dumps({name: number for number, name in enumerate(ODD)}).encode()
    (row,) = decoded(spark, hr.Json(ddl, on_error=on_error), [value]).rows.collect()
    assert {name: row[name] for name in ODD} == {name: number for number, name in enumerate(ODD)}


# text and bytes


def test_text_is_one_column(spark):
    rows = decoded(spark, hr.Text(), ["naïve ✓ 😀".encode(), b"", None]).rows
    assert [row["value"] for row in rows.collect()] == ["naïve ✓ 😀", "", None]
    assert rows.columns == ["value", "_kafka"]


def test_text_that_is_not_utf8_is_bad(spark):
    error = failure(decoded(spark, hr.Text(), [b"good", b"\xff"]).rows)
    assert "offset 1: not UTF-8 text" in error.message
    kept = decoded(spark, hr.Text(on_error="keep"), [b"good", b"\xff"]).rows.collect()
    assert [(row["value"], row["bad"] is None) for row in kept] == [("good", True), (None, False)]
    dropped = decoded(spark, hr.Text(on_error="drop"), [b"good", b"\xff"])
    assert [row["value"] for row in dropped.rows.collect()] == ["good"]
    assert dropped.dropped() == 1


@pytest.mark.parametrize("on_error", ["fail", "drop", "keep"])
def test_bytes_are_never_bad_and_never_changed(spark, on_error):
    values = [bytes(range(256)), b"", None]
    rows = decoded(spark, hr.Bytes(on_error=on_error), values).rows.select("value").collect()
    assert [None if row["value"] is None else bytes(row["value"]) for row in rows] == values


# schemas


@pytest.mark.parametrize("ddl", ["user STRNG", "user STRING,, n INT", "user", "user STRING n INT", "1"])
def test_a_schema_that_does_not_parse_is_shown_with_an_example(spark, ddl):
    with pytest.raises(ConfigError, match="the schema does not parse") as refused:
        columns(spark, hr.Json(ddl))
    assert repr(ddl) in refused.value.message
    assert "DDL" in refused.value.hint


@pytest.mark.parametrize("ddl", ["INT", "STRUCT<user: STRING>", "ARRAY<INT>"])
def test_a_schema_that_is_a_type_is_decoded_or_refused_but_never_left_for_the_first_batch(spark, ddl):
    try:
        frame = plan.preview(spark, hr.Json(ddl), lambda rows: rows)
    except ConfigError:
        return
    assert "user" in frame.columns


@pytest.mark.parametrize("ddl", ["user: STRING, n: INT", "user STRING NOT NULL,\n n INT COMMENT 'a \\\\ b'"])
def test_a_schema_may_be_written_in_every_way_that_spark_reads(spark, ddl):
    (row,) = decoded(spark, hr.Json(ddl), [b'{"user": "ann", "n": 1}']).rows.collect()
    assert (row["user"], row["n"]) == ("ann", 1)


@pytest.mark.parametrize(("ddl", "on_error"), [("_kafka INT", "fail"), ("_KAFKA INT", "drop"), ("BAD INT", "keep")])
def test_a_column_that_headrace_needs_itself_is_refused(spark, ddl, on_error):
    with pytest.raises(ConfigError, match="is taken by Headrace"):
        columns(spark, hr.Json(ddl, on_error=on_error))


def test_a_column_named_bad_is_fine_where_nothing_is_kept(spark):
    (row,) = decoded(spark, hr.Json("bad INT"), [b'{"bad": 1}']).rows.collect()
    assert row["bad"] == 1


def test_a_column_named_twice_is_refused(spark):
    with pytest.raises(ConfigError, match="twice"):
        columns(spark, hr.Json("user STRING, User STRING"))


# through a whole run


def pipeline(topic, sink, fmt, **changes):
    return hr.Pipeline(
        name="clicks",
        source=hr.Kafka(topic.bootstrap, topics=[topic.name], format=fmt),
        sink=sink,
        guarantee="at-least-once",
        **changes,
    )


@pytest.mark.parametrize("kind", ["duckdb", "parquet", "memory"])
def test_a_run_reports_every_record_it_drops(topic, spark, tmp_path, kind):
    where = topic(partitions=2)
    where.produce([b"bad" if number % 10 == 3 else {"n": number} for number in range(200)])
    made = {
        "duckdb": lambda: sinks.DuckDB(tmp_path / "x.duckdb", table="t"),
        "parquet": lambda: sinks.Parquet(tmp_path / "out"),
        "memory": sinks.Memory,
    }
    seen = []
    pipeline(
        where,
        made[kind](),
        hr.Json("n INT", on_error="drop"),
        offsets=None if kind == "duckdb" else stores.Memory(),
        limits=hr.Limits(max_records=70),
    ).run(until="caught-up", session=spark, observer=seen.append)
    counted = [event.count for event in seen if isinstance(event, events.BadRecordsDropped)]
    assert sum(counted) == 20
    assert len([event for event in seen if isinstance(event, events.BatchDone)]) == 3


def test_a_run_that_meets_a_bad_record_fails_names_it_and_writes_nothing_of_the_batch(topic, spark):
    where = topic(partitions=1)
    where.produce([{"n": 1}, {"n": 2}, b"oops"])
    sink, store = sinks.Memory(), stores.Memory()
    with pytest.raises(BadRecord, match=rf"{where.name}\[0\] offset 2: .*b'oops'"):
        pipeline(where, sink, hr.Json("n INT"), offsets=store).run(until="caught-up", session=spark)
    assert sink.rows == []


def test_a_run_after_the_cure_goes_on_with_the_same_batch(topic, spark):
    where = topic(partitions=1)
    where.produce([{"n": 1}, b"oops", {"n": 3}])
    sink, store = sinks.Memory(), stores.Memory()
    with pytest.raises(BadRecord):
        pipeline(where, sink, hr.Json("n INT"), offsets=store).run(until="caught-up", session=spark)
    cured = hr.Json("n INT", on_error="drop")
    pipeline(where, sink, cured, offsets=store).run(until="caught-up", session=spark)
    assert sink.rows == [{"n": 1}, {"n": 3}]
