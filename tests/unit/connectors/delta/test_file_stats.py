"""What a Delta log says of a Parquet file: its statistics and its partition."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as t

from headrace.connectors.delta.file_stats import File, decode_partition_values, describe_file


def stats_of(path, kind, arrow, values, **more):
    pq.write_table(pa.table({"column": pa.array(values, arrow)}), path, row_group_size=2)
    table = t.StructType([t.StructField("column", kind)])
    return describe_file("p", 1, pq.read_metadata(path), table, [])


@pytest.mark.parametrize(
    ("kind", "arrow", "values", "low", "high"),
    [
        (t.LongType(), pa.int64(), [5, -7, 9], -7, 9),
        (t.BooleanType(), pa.bool_(), [True, False], False, True),
        (t.DoubleType(), pa.float64(), [0.5, -1.5], -1.5, 0.5),
        (t.StringType(), pa.string(), ["b", "ä", "a"], "a", "ä"),
        (t.DateType(), pa.date32(), [date(2026, 1, 2), date(1969, 12, 31)], "1969-12-31", "2026-01-02"),
        (
            t.TimestampType(),
            pa.timestamp("us", "UTC"),
            [datetime(2026, 1, 1, microsecond=1, tzinfo=UTC), datetime(2026, 1, 1, microsecond=1001, tzinfo=UTC)],
            "2026-01-01T00:00:00.000Z",
            "2026-01-01T00:00:00.002Z",
        ),
        (t.LongType(), pa.int64(), [None, 3, None], 3, 3),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, t.DataType) else None,
)
def test_bounds_include_every_value(tmp_path, kind, arrow, values, low, high):
    file = stats_of(tmp_path / "f.parquet", kind, arrow, values)
    assert (file.low, file.high) == ({"column": low}, {"column": high})
    assert file.nulls == {"column": values.count(None)}
    stats = json.loads(file.stats)
    assert (stats["numRecords"], stats["minValues"]) == (len(values), {"column": low})


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        (t.DoubleType(), pa.float64(), [1.0, math.inf]),
        (t.DecimalType(10, 2), pa.decimal128(10, 2), [Decimal("1.50")]),
        (t.TimestampNTZType(), pa.timestamp("us"), [datetime(2026, 1, 1)]),
        (t.LongType(), pa.int64(), [None, None]),
    ],
    ids=["infinity", "decimal", "no zone", "null"],
)
def test_a_column_without_bounds_that_every_reader_takes_has_none(tmp_path, kind, arrow, values):
    file = stats_of(tmp_path / "f.parquet", kind, arrow, values)
    assert (file.low, file.high) == ({}, {})
    assert "minValues" not in json.loads(file.stats)


def test_zeros_are_signed_so_that_both_are_within_the_bounds(tmp_path):
    file = stats_of(tmp_path / "f.parquet", t.DoubleType(), pa.float64(), [0.0, 0.0])
    assert math.copysign(1, file.low["column"]) == -1
    assert math.copysign(1, file.high["column"]) == 1


def test_a_file_has_the_bounds_of_all_columns_or_of_none(tmp_path):
    rows = pa.table({"n": pa.array([1, 2]), "price": pa.array([Decimal("1.5")] * 2, pa.decimal128(5, 2))})
    pq.write_table(rows, tmp_path / "f.parquet")
    table = t.StructType([t.StructField("n", t.LongType()), t.StructField("price", t.DecimalType(5, 2))])
    file = describe_file("p", 1, pq.read_metadata(tmp_path / "f.parquet"), table, [])
    assert (file.low, file.high, file.nulls) == ({}, {}, {"n": 0, "price": 0})


def test_a_column_that_was_added_later_is_null_in_an_older_file(tmp_path):
    pq.write_table(pa.table({"n": pa.array([1, 2])}), tmp_path / "f.parquet")
    table = t.StructType([t.StructField("n", t.LongType()), t.StructField("added", t.StringType())])
    file = describe_file("p", 1, pq.read_metadata(tmp_path / "f.parquet"), table, [])
    assert file.nulls == {"n": 0, "added": 2}
    assert (file.low, file.high) == ({"n": 1}, {"n": 2})


def hexed(text):
    return "x" + text.encode().hex()


@pytest.mark.parametrize(
    ("path", "partition_by", "partition"),
    [
        ("f.parquet", [], {}),
        (f"a/p0={hexed('2026-01-01')}/f.parquet", ["day"], {"day": "2026-01-01"}),
        (f"p0={hexed('a/b=c')}/p1={hexed('ä')}/f", ["kind", "name"], {"kind": "a/b=c", "name": "ä"}),
        ("p0=__HIVE_DEFAULT_PARTITION__/f", ["kind"], {"kind": None}),
        ("p0=x/f", ["kind"], {"kind": None}),
    ],
)
def test_a_folder_stands_for_a_partition(path, partition_by, partition):
    assert decode_partition_values(path, partition_by) == partition


@pytest.mark.parametrize(
    ("column", "null"), [("full", False), ("some", True), ("unknown", True), ("day", False), ("kind", True)]
)
def test_a_column_may_be_null_unless_the_log_says_that_it_is_not(column, null):
    file = File("p", 1, 5, {"day": "2026-01-01", "kind": None}, {"full": 0, "some": 2}, {}, {})
    assert file.may_be_null(column) is null
