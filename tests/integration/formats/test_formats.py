"""Formats on real Spark: what is good, what is bad, and that no bad record passes unseen."""

import dataclasses
import datetime
import json
import random
import re
import struct
import time

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import events, sinks, stores
from headrace.core.dead_letters import RejectedRow
from headrace.core.error_markers import is_bad_record_error
from headrace.engine import transform_check
from headrace.engine.dead_letter_records import dead_letter_records
from headrace.engine.decoder import Decoder
from headrace.engine.field_decoder import RAW_SCHEMA
from headrace.errors import BadRecord, ConfigError
from headrace.formats.avro import schema
from headrace.spark import task_alignment
from support.project import ROOT

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
    "an empty object with blanks": (b" { \r\n\t } \n", (None,) * 6),
    "an object at the end of an object": (b'{"n": 4, "extra": {"deep": {"deeper": [{}]}}}', (None, 4) + (None,) * 4),
    "leading space": (b'  {"n": 2}', (None, 2) + (None,) * 4),
    "leading and trailing lines": (b'\r\n\t {"n": 3}\n', (None, 3) + (None,) * 4),
    "every script": ('{"user": "naïve ✓ 漢字 😀"}'.encode(), ("naïve ✓ 漢字 😀",) + (None,) * 5),
    "escapes": (b'{"user": "a\\u00e9\\n\\"b\\""}', ('aé\n"b"',) + (None,) * 5),
    "a tombstone is a row of nulls": (None, (None,) * 6),
}
BAD = {
    "not JSON": b"hello",
    "cut off": b'{"user": "ann", "n"',
    "nested too deeply": b'{"user": "ann", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested too deeply in a known field": b'{"tags": ' + b"[" * 100_000,
    "other quotes than JSON has": b"{'user': 'ann'}",
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
    "something behind the object that ends as one": b'{"user": "ann"} "and so on"}',
    "something behind an object at the end of an object": b'{"extra": {"deep": 1}} {"user": "ann"}',
    "something behind an empty object": b'{} {"user": "ann"}',
    "a brace too many": b'{"user": "ann"}}',
    "a brace too few": b'{"extra": {"deep": 1}',
    "a comma too many": b'{"user": "ann",}',
    "a text that does not end": b'{"user": "ann}',
    "an array that does not end": b'[{"user": "ann"}',
    "an array that ends as an object": b'[{"user": "ann"}}',
}


def raw(spark, values):
    rows = [(None, value, "clicks", 3, offset, None, 0, None) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW_SCHEMA)


def decoded(spark, fmt, values):
    return Decoder(spark, fmt).decode(raw(spark, values))


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


def failure(spark, fmt, values, transform=lambda rows: rows):
    decoder, frame = Decoder(spark, fmt), raw(spark, values)
    try:
        transform(decoder.decode(frame).rows).collect()
    except Exception as error:
        return decoder.locate_bad_record(frame) if is_bad_record_error(error) else None
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
    values = [b'{"n": 1}', b'{"n": 2}', b'{"n": "\x00many"}']
    error = failure(spark, hr.Json("n INT"), values, TRANSFORMS[name])
    assert isinstance(error, BadRecord)
    assert "clicks[3] offset 2" in error.message
    assert repr(b'{"n": "\x00many"}') in error.message
    assert "drop" in error.hint
    assert "keep" in error.hint


def test_a_long_bad_record_is_shown_in_part(spark):
    error = failure(spark, hr.Json("n INT"), [b"x" * 5000])
    assert "and 4,800 bytes more" in error.message
    assert len(error.message) < 500


@pytest.mark.parametrize("name", BAD)
def test_every_bad_record_fails_a_batch_and_is_named(spark, name):
    error = failure(spark, hr.Json(JSON), [b"{}", BAD[name], None])
    assert isinstance(error, BadRecord)
    assert re.search(r"clicks\[3\] offset 1: (not |field [a-z\[\]]+: expected [A-Z])", error.message)


def test_good_records_fail_no_batch(spark):
    values = [value for value, _ in GOOD.values()]
    assert len(decoded(spark, hr.Json(JSON), values).rows.collect()) == len(values)


def test_what_is_a_json_object_is_what_the_standard_says(spark):
    """Objects with something put in, left out or turned round, against Python's own parser."""
    chance = random.Random(20261115)

    def some(depth):
        kinds = [1, -2.5, "a", "", 'q"', "\\", "é😀", True, None, [], {}]
        if depth and chance.random() < 0.6:
            inner = [some(depth - 1) for _ in range(chance.randrange(4))]
            return inner if chance.random() < 0.4 else {chance.choice("abc{}"): value for value in inner}
        return chance.choice(kinds)

    def mutated(text):
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            at = chance.randrange(len(text) + 1)
            put = chance.choice(["{", "}", "[", "]", '"', ",", ":", " ", "\n", "1", "\\", "{}", '"a":1', ""])
            text = text[:at] + put + text[at + chance.randrange(3) :]
        return text

    texts = {mutated(json.dumps(some(3), ensure_ascii=chance.random() < 0.5)) for _ in range(4_000)}
    texts |= {mutated(json.dumps({"a": some(2)})) for _ in range(4_000)}
    values = sorted(text.encode() for text in texts)

    def is_object(value):
        try:
            return isinstance(json.loads(value), dict)
        except ValueError:
            return False

    kept = decoded(spark, hr.Json("unrelated STRING", on_error="keep"), values).rows
    rows = kept.selectExpr("bad IS NULL", "_kafka.offset")
    found = {values[offset]: good for good, offset in rows.collect()}
    expected = {value: is_object(value) for value in values}
    assert sum(expected.values()) > 800
    assert {value: good for value, good in found.items() if good != expected[value]} == {}
    objects = [value for value, good in expected.items() if good]
    assert len(decoded(spark, hr.Json("unrelated STRING"), objects).rows.collect()) == len(objects)


def test_an_error_that_is_no_bad_record_is_not_taken_for_one():
    assert not is_bad_record_error(ValueError("something else"))


@pytest.mark.parametrize("on_error", ["fail", "drop", "keep"])
def test_a_record_is_parsed_once_though_the_transform_filters(spark, on_error):
    rows = decoded(spark, hr.Json("user STRING, n INT", on_error=on_error), [b"{}"]).rows
    frame = rows.where("n > 1 AND user IS NOT NULL").selectExpr("upper(user) AS user", "n + 1 AS n")
    assert frame._jdf.queryExecution().executedPlan().toString().count("from_json(StructField(user,") == 1


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
    error = failure(spark, hr.Text(), [b"good", b"\xff"])
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


# nested JSON, and times


NESTED = (
    "place STRUCT<lat: DOUBLE, in: STRUCT<n: INT>>, ns ARRAY<INT>, counts MAP<STRING, INT>, ps ARRAY<STRUCT<n: INT>>"
)


def test_nested_json_is_nested_columns_and_bad_where_any_part_of_it_is(spark):
    whole = {
        "place": {"lat": 1.5, "in": {"n": 2}},
        "ns": [1, None],
        "counts": {"x": 1, "y": None},
        "ps": [{"n": 1}, None],
    }
    bad = [
        {"place": {"lat": "x"}},
        {"place": {"in": {"n": "x"}}},
        {"place": 5},
        {"ns": ["x"]},
        {"ns": 5},
        {"counts": {"a": "x"}},
        {"ps": [{"n": "x"}]},
        {"ps": {"n": 1}},
    ]
    values = [json.dumps(value).encode() for value in [whole, *bad]]
    rows = decoded(spark, hr.Json(NESTED, on_error="keep"), values).rows.collect()
    assert {name: rows[0].asDict(recursive=True)[name] for name in whole} == whole
    assert [row["bad"] is None for row in rows] == [True, *(False for _ in bad)]


def test_a_time_with_an_offset_is_the_moment_it_names_and_one_without_is_in_the_zone_of_the_session(spark):
    columns, times = "at TIMESTAMP, wall TIMESTAMP_NTZ", ["2024-05-06T12:00:00+02:00", "2024-05-06T10:00:00Z"]
    values = [json.dumps({"at": time}).encode() for time in [*times, "2024-05-06T10:00:00", "2024-05-06 10:00:00"]]
    lines = [f"{time},".encode() for time in [*times, "2024-05-06T10:00:00", "2024-05-06 10:00:00"]]
    for fmt, raws in ((hr.Json(columns), values), (hr.Csv(columns), lines)):
        rows = decoded(spark, fmt, raws).rows.selectExpr("CAST(at AS STRING) AS at").collect()
        assert [row["at"] for row in rows] == ["2024-05-06 10:00:00"] * 4
    wall = decoded(spark, hr.Json(columns), [b'{"wall": "2024-05-06T10:00:00"}']).rows.collect()
    assert wall[0]["wall"] == datetime.datetime(2024, 5, 6, 10)


DOUBTFUL = (
    "price DECIMAL(10,2), s STRING, day DATE, at TIMESTAMP, st STRUCT<price: DECIMAL(5,1), at: TIMESTAMP>,"
    " ps ARRAY<DECIMAL(5,2)>, pm MAP<STRING, DECIMAL(5,2)>, ls ARRAY<STRUCT<p: DECIMAL(5,2), qs: ARRAY<DECIMAL(5,2)>>>,"
    " ts ARRAY<TIMESTAMP>, deep ARRAY<ARRAY<MAP<STRING, ARRAY<DECIMAL(5,2)>>>>"
)
NOT_MEANT = [
    b'{"price": "1,5"}',
    b'{"price": ",5"}',
    b'{"price": "1.234,50"}',
    b'{"price": "1\\u002c5"}',
    b'{"price": 1e400000000}',
    b'{"price": 1e-400000000}',
    b'{"price": "1E+400000000"}',
    b'{"st": {"price": "1,5"}}',
    b'{"st": {"price": -1e400000000}}',
    b'{"ps": [1, "1,5"]}',
    b'{"ps": [1e400000000, 2]}',
    b'{"ps": [1e-400000000, 2]}',
    b'{"pm": {"a": "1,5"}}',
    b'{"pm": {"a": 1e400000000}}',
    b'{"ls": [{"p": 1}, {"p": "1,5"}]}',
    b'{"ls": [{"qs": [1]}, null, {"qs": null}, {"qs": ["1,5"]}]}',
    b'{"ls": [{"qs": [1e400000000]}]}',
    b'{"deep": [[], null, [{"a": [1]}, {"b": null, "c": [2, "1,5"]}]]}',
    b'{"day": "20240101"}',
    b'{"day": "12"}',
    b'{"at": "12:30:00"}',
    b'{"at": "T12"}',
    b'{"at":"1:30Z"}',
    b'{"st": {"at": "12:30"}}',
    b'{"ts": ["2024-01-01", "12:30"]}',
]
MEANT_SO = [
    b'{"price": "1.50", "s": "1,5"}',
    b'{"price": 1.5, "s": "12:30", "other": {"price": "1,5", "at": "12:30"}}',
    b'{"price": 15e-1, "s": "12e45678"}',
    b'{"price": "\\u0031.5"}',
    b'{"price": "-15E-1", "at": "2024-05-06T07:08:09.123456789+02:00"}',
    b'{"ps": ["1.5", 0.0, null], "s": "a,12e-45678", "pm": {"a": "1.5"}, "ls": [{"p": "2.5", "qs": [1, null]}, null]}',
    b'{"day": "2024-01-01", "at": "2024-05-06 07:08:09", "ts": ["2024-01-01 12:30", null]}',
    b'{"deep": [[], null, [{"a": [1]}, {"b": null, "1,5": [2, "1.5"]}]], "s": "1,5"}',
    b'{"st": {"at": "2199-05-06T07:08:09.1Z", "price": null}}',
]


def test_a_text_that_spark_would_read_as_another_number_or_time_is_bad_at_any_depth_and_at_once(spark):
    begun = time.monotonic()
    kept = decoded(spark, hr.Json(DOUBTFUL, on_error="keep"), NOT_MEANT + MEANT_SO).rows
    bad = {offset for error, offset in kept.selectExpr("bad.error", "_kafka.offset").collect() if error is not None}
    assert bad == set(range(len(NOT_MEANT)))
    assert len(decoded(spark, hr.Json(DOUBTFUL), MEANT_SO).rows.collect()) == len(MEANT_SO)
    for value in (NOT_MEANT[0], NOT_MEANT[4], NOT_MEANT[-5], NOT_MEANT[-1]):
        assert isinstance(failure(spark, hr.Json(DOUBTFUL), [b"{}", value]), BadRecord), value
    assert time.monotonic() - begun < 60


def test_a_column_with_the_name_that_spark_has_for_bad_texts_is_like_any_other(spark):
    value = b'{"a": 1, "_corrupt_record": 5}'
    for on_error in ("fail", "keep"):
        (row,) = decoded(spark, hr.Json("a INT, _corrupt_record INT", on_error=on_error), [value]).rows.collect()
        assert (row["a"], row["_corrupt_record"]) == (1, 5)


# CSV


CSV = {
    "plain": (b"1,ann,2.50", (1, "ann", "2.50")),
    "quoted": (b'1,"a, ""b""",2', (1, 'a, "b"', "2.00")),
    "lines in a field": (b'1,"a\nb",2', (1, "a\nb", "2.00")),
    "empty fields": (b",,", (None, None, None)),
    "a line's end": (b"1,ann,\r\n", (1, "ann", None)),
    "a quote within": (b'1,5" pipe,2', (1, '5" pipe', "2.00")),
    "blanks": (b"1, ann ,2", (1, " ann ", "2.00")),
    "a tombstone": (None, (None, None, None)),
    "too few": (b"1,ann", "fields"),
    "too many": (b"1,ann,2,3", "fields"),
    "two lines": (b"1,ann,2\n2,bob,3", "fields"),
    "no number": (b"one,ann,2", "fields"),
    "too large": (b"1,ann,12345.67", "fields"),
    "nothing": (b"", "empty"),
    "a line alone": (b"\n", "empty"),
    "an open quote": (b'1,"ann', "fields"),
    "an open quote at the end": (b'1,2,"3', "quote does not end"),
    "not UTF-8": (b"1,\xff,2", "UTF-8"),
}


def test_csv_has_as_many_fields_as_columns_and_nothing_of_it_is_silently_null(spark):
    fmt = hr.Csv("id INT, name STRING, price DECIMAL(5,2)", on_error="keep")
    rows = decoded(spark, fmt, [value for value, _ in CSV.values()]).rows.collect()
    for row, (name, (value, meant)) in zip(rows, CSV.items(), strict=True):
        if isinstance(meant, tuple):
            found = (row["id"], row["name"], None if row["price"] is None else str(row["price"]))
            assert (row["bad"], found) == (None, meant), name
        else:
            assert meant in row["bad"]["error"], name
            assert bytes(row["bad"]["value"]) == value
    text = decoded(spark, hr.Csv("n INT, name STRING", on_error="keep"), [b'1,"cut']).rows.collect()
    assert text[0]["bad"]["error"] == "a quote does not end"


@pytest.mark.parametrize(
    ("delimiter", "good", "bad"),
    [
        (";", [b"1;1.5;", b"12;1.5;2024-01-01 12:30", b"1;;2199-01-01"], [b"1;1,5;", b"1;1.234,50;", b"1;1e9999999;"]),
        (";", [b"1;1.5;2024-05-06T12:00:00Z"], [b"1;1.5;12:30:00", b'1;1.5;"12:30:00"', b"1;1.5;T12"]),
        (",", [b'1,"1.5","2024-05-06T12:00:00Z"'], [b'1,"1,5",', b"1,-1e400000000,", b"1,1.5,12:30"]),
    ],
)
def test_csv_has_no_other_number_or_time_than_it_says(spark, delimiter, good, bad):
    fmt = hr.Csv("id INT, price DECIMAL(10,2), at TIMESTAMP", delimiter=delimiter, on_error="keep")
    rows = decoded(spark, fmt, good + bad).rows.collect()
    assert [row["bad"] is None for row in rows] == [True] * len(good) + [False] * len(bad)


def test_csv_writes_a_null_that_is_alone_in_its_row_and_reads_it_back(spark):
    rows = spark.createDataFrame([("a",), (None,)], "name STRING").coalesce(1)
    written = rows.selectExpr(f"{hr.Csv().encode_expr({'name': 'string'}, 't')} AS value").collect()
    assert [bytes(row["value"]) for row in written] == [b"a", b'""']
    back = decoded(spark, hr.Csv("name STRING"), [bytes(row["value"]) for row in written]).rows.collect()
    assert [row["name"] for row in back] == ["a", None]


def test_csv_may_have_other_signs_and_comes_back_as_it_was_written(spark):
    fmt = hr.Csv("id INT, name STRING, at TIMESTAMP", delimiter=";", quote="'")
    rows = decoded(spark, fmt, [b"1;' it''s; a, ';2024-05-06T12:00:00+02:00", b";;"]).rows
    assert rows.collect()[0]["name"] == " it's; a, "
    back = rows.selectExpr(f"{fmt.encode_expr({'id': 'integer', 'name': 'string', 'at': 'timestamp'}, 't')} AS value")
    again = decoded(spark, fmt, [bytes(row["value"]) for row in back.collect()]).rows
    assert again.drop("_kafka").collect() == rows.drop("_kafka").collect()


# functions


def documented():
    """The example in docs/formats.md."""
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    (example,) = (block.partition("```")[0] for block in page.split("```python\n") if "def customer(" in block)
    scope = {"hr": hr, "__name__": "documented"}
    exec(example, scope)
    return scope["customers"]


CUSTOMER = dataclasses.replace(documented(), on_error="keep")
VECTORS = {"0000000100000003416e6e": (1, "Ann"), "00000007000000045a6fc3ab": (7, "Zoë"), "0000000700000000": (7, None)}


def test_a_function_of_one_record_reads_a_layout_of_its_own_and_writes_it_back(spark):
    values = [bytes.fromhex(one) for one in VECTORS]
    rows = decoded(spark, CUSTOMER, [*values, None]).rows
    assert [(row["id"], row["name"], row["bad"]) for row in rows.collect()] == [
        *((*meant, None) for meant in VECTORS.values()),
        (None, None, None),
    ]
    back = rows.selectExpr(f"{CUSTOMER.encode_expr({'id': 'integer', 'name': 'string'}, 't')} AS value").collect()
    assert [row["value"] and bytes(row["value"]) for row in back] == [*values, None]


def test_a_function_says_what_is_bad_and_a_value_that_does_not_fit_is_bad_too(spark):
    longer = struct.pack(">qi", 1, 3) + b"Ann"  # what a second version with a long id would write
    rows = decoded(spark, CUSTOMER, [b"1234567", longer, bytes.fromhex("0000000100000003ffffff")]).rows.collect()
    assert [row["bad"]["error"] for row in rows[:2]] == [
        "7 bytes; a customer has 8 at least",
        "7 bytes of a name; 1 are announced",
    ]
    assert "can't decode" in rows[2]["bad"]["error"]
    large = hr.Custom.each(lambda value: (2 ** len(value), "a"), "n INT, name STRING", on_error="keep")
    good, bad = decoded(spark, large, [b"1234", b"1" * 40]).rows.collect()
    assert (good["n"], good["bad"], bad["n"]) == (16, None, None)
    assert bad["bad"]["error"].startswith("n does not match its type")


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_time_of_a_function_that_names_no_zone_is_in_that_of_the_session(spark, one_by_one):
    noon = datetime.datetime(2024, 6, 1, 12)
    each = hr.Custom.each(lambda value: {"at": noon, "in": {"at": noon}}, "at TIMESTAMP, in STRUCT<at: TIMESTAMP>")
    batch = hr.Custom(lambda values: {"at": [noon] * len(values)}, "at TIMESTAMP")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Amsterdam")
    try:
        rows = decoded(spark, each if one_by_one else batch, [b"x"]).rows
        (row,) = rows.selectExpr("unix_seconds(at) AS at", "to_json(struct(* EXCEPT (_kafka))) AS all").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert row["at"] == datetime.datetime(2024, 6, 1, 10, tzinfo=datetime.UTC).timestamp()
    assert row["all"].count("12:00:00.000+02:00") == (2 if one_by_one else 1)


def test_a_function_of_a_batch_gets_its_values_as_arrow_and_the_plan_stays_narrow(spark):
    def lengths(values):  # in the test, so that workers get its code: they cannot import this module
        size = pc.binary_length(values)
        return {"size": size, "error": pc.if_else(pc.equal(size, 0), "nothing is in it", None)}

    found = decoded(spark, hr.Custom(lengths, "size BIGINT", on_error="drop"), [b"abc", b"", None, b"x"])
    assert [row["size"] for row in found.rows.collect()] == [3, None, 1]
    assert found.dropped() == 1
    assert task_alignment.plan_is_narrow(found.rows.where("size > 1"))
    assert task_alignment.preserves_row_order(found.rows)


def test_a_function_that_gives_something_else_fails_the_batch_and_says_so(spark):
    for function, said in (
        (lambda values: {"other": values}, "from the function, got other"),
        (lambda values: {"n": [1]}, "rows from the function, got 1"),
        (lambda values: 5, "from the function, got int"),
    ):
        decoder, frame = Decoder(spark, hr.Custom(function, "n BIGINT")), raw(spark, [b"a", b"b"] * 4)
        with pytest.raises(Exception, match=said) as failed:
            decoder.decode(frame).rows.collect()
        assert not is_bad_record_error(failed.value)


# keys


def test_a_key_is_one_column_and_a_bad_one_makes_a_bad_record(spark):
    rows = [(key, b'{"n": 1}', "clicks", 3, at, None, 0, None) for at, key in enumerate([b"a", None, b"\xff"])]
    frame = spark.createDataFrame(rows, RAW_SCHEMA)
    decoder = Decoder(spark, hr.Json("n INT"), hr.Text())
    with pytest.raises(Exception, match=r"headrace\.BadRecord"):
        decoder.decode(frame).rows.collect()
    assert "offset 2: key: not UTF-8 text: b'\\xff'" in decoder.locate_bad_record(frame).message
    judged = decoder.validated(frame)
    assert [(row["key"], row["n"]) for row in judged.good.collect()] == [("a", 1), (None, 1)]
    assert [(one.key, one.value, one.error) for one in judged.collect_dead_letters(9)] == [
        (b"\xff", b'{"n": 1}', "key: not UTF-8 text")
    ]
    assert decoder.columns == ["n", "key"]
    assert decoder.empty_argument().columns == ["n", "key", "_kafka"]
    nested = Decoder(spark, hr.Bytes(), hr.Json("id INT")).decode(frame.where("key IS NULL")).rows
    assert nested.schema["key"].dataType.simpleString() == "struct<id:int>"


def test_a_key_that_cannot_go_with_its_value_is_refused(spark):
    with pytest.raises(ConfigError, match="the value has a column Key"):
        Decoder(spark, hr.Json("Key INT"), hr.Text())
    with pytest.raises(ConfigError, match="got 'fail' and 'drop'"):
        Decoder(spark, hr.Json("n INT"), hr.Text(on_error="drop"))


def test_a_bad_record_of_a_time_that_python_does_not_have_is_a_letter_all_the_same(spark):
    near, far = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, datetime.UTC), "timestamp_millis(1763247600000000)"
    frame = raw(spark, [b"near", b"far"]).drop("timestamp")
    frame = frame.selectExpr("*", f"if(offset = 0, timestamp_millis({int(near.timestamp() * 1000)}), {far}) timestamp")
    letters = Decoder(spark, hr.Json("n INT")).validated(frame).collect_dead_letters(9)
    assert [(letter.value, letter.timestamp) for letter in letters] == [(b"near", near), (b"far", None)]
    refused = [RejectedRow(letter.origin, "too far", "sink") for letter in letters]
    assert {letter.value: letter.timestamp for letter in dead_letter_records([frame], refused)} == {
        b"near": near,
        b"far": None,
    }


# there and back


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**31), 2**31 - 1) | st.none(),
            st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.none(),
            st.lists(st.integers(0, 9)) | st.none(),
            st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)) | st.none(),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_what_json_and_avro_write_they_read_back(spark, rows):
    kinds = "id INT, name STRING, ns ARRAY<INT>, at TIMESTAMP_NTZ"
    frame = spark.createDataFrame(rows, kinds)
    columns = {field["name"]: field["type"] for field in frame.schema.jsonValue()["fields"]}
    avro = hr.Avro(json.dumps(schema.record(columns, "r")))
    for fmt, reader in ((hr.Json(), hr.Json(kinds)), (avro, avro)):
        written = [
            bytes(row["value"]) for row in frame.selectExpr(f"{fmt.encode_expr(columns, 't')} AS value").collect()
        ]
        assert decoded(spark, reader, written).rows.drop("_kafka").collect() == frame.collect()


# schemas


@pytest.mark.parametrize("ddl", ["user STRNG", "user STRING,, n INT", "user", "user STRING n INT", "1"])
def test_a_schema_that_does_not_parse_is_shown_with_an_example(spark, ddl):
    with pytest.raises(ConfigError, match="the schema does not parse") as refused:
        Decoder(spark, hr.Json(ddl))
    assert repr(ddl) in refused.value.message
    assert "DDL" in refused.value.hint


@pytest.mark.parametrize("ddl", ["INT", "STRUCT<user: STRING>", "ARRAY<INT>"])
def test_a_schema_that_is_a_type_is_decoded_or_refused_but_never_left_for_the_first_batch(spark, ddl):
    try:
        frame = transform_check.dry_run(Decoder(spark, hr.Json(ddl)), lambda rows: rows)
    except ConfigError:
        return
    assert "user" in frame.columns


@pytest.mark.parametrize("ddl", ["user: STRING, n: INT", "user STRING NOT NULL,\n n INT COMMENT 'a \\\\ b'"])
def test_a_schema_may_be_written_in_every_way_that_spark_reads(spark, ddl):
    (row,) = decoded(spark, hr.Json(ddl), [b'{"user": "ann", "n": 1}']).rows.collect()
    assert (row["user"], row["n"]) == ("ann", 1)


@pytest.mark.parametrize(("ddl", "on_error"), [("_kafka INT", "fail"), ("_KAFKA INT", "drop"), ("BAD INT", "keep")])
def test_a_column_that_headrace_needs_itself_is_refused(spark, ddl, on_error):
    with pytest.raises(ConfigError, match="is reserved by Headrace"):
        Decoder(spark, hr.Json(ddl, on_error=on_error))


def test_a_column_named_bad_is_fine_where_nothing_is_kept(spark):
    (row,) = decoded(spark, hr.Json("bad INT"), [b'{"bad": 1}']).rows.collect()
    assert row["bad"] == 1


def test_a_column_named_twice_is_refused(spark):
    with pytest.raises(ConfigError, match="twice"):
        Decoder(spark, hr.Json("user STRING, User STRING"))


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
