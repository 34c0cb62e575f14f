"""Partitions of a Hive table, from the directories that hold them."""

import pytest
from pyspark.sql import types as t

from headrace.connectors.hive.partitions import check_columns, partition_directories, partition_sql, quoted
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("files", "depth", "found"),
    [
        ([], 0, []),
        (["a.parquet", "b.parquet"], 0, [""]),
        (["day=1/a.parquet", "day=1/b.parquet", "day=2/c.parquet"], 1, ["day=1", "day=2"]),
        (["day=1/kind=x/a.parquet"], 2, ["day=1/kind=x"]),
        (["day=1/_SUCCESS", "day=1/.a.crc"], 1, []),
        (["day=1/a.parquet", "stray.parquet"], 1, ["day=1"]),
    ],
)
def test_directories_of_data_files_are_partitions(files, depth, found):
    assert partition_directories(files, depth) == found


@pytest.mark.parametrize(
    ("directory", "sql"),
    [
        ("", "PARTITION (headrace_batch = '7') LOCATION '/w/7'"),
        ("day=2026-01-01", "PARTITION (`day` = '2026-01-01', headrace_batch = '7') LOCATION '/w/7/day=2026-01-01'"),
        (
            "name=a%2Fb%20c",
            "PARTITION (`name` = 'a/b c', headrace_batch = '7') LOCATION '/w/7/name=a%2Fb%20c'",
        ),
        ("name=it's", "PARTITION (`name` = 'it\\'s', headrace_batch = '7') LOCATION '/w/7/name=it\\'s'"),
        (
            "kind=__HIVE_DEFAULT_PARTITION__",
            "PARTITION (`kind` = NULL, headrace_batch = '7') LOCATION '/w/7/kind=__HIVE_DEFAULT_PARTITION__'",
        ),
    ],
)
def test_the_sql_of_a_partition_unescapes_names_and_values(directory, sql):
    assert partition_sql(directory, "7", "/w/7") == sql


ROWS = t.StructType([t.StructField("n", t.LongType()), t.StructField("Day", t.StringType())])
BATCH = ("headrace_batch", "string", True)


@pytest.mark.parametrize(
    ("table", "partition_by", "fit"),
    [
        ([("n", "bigint", False), ("day", "string", True), BATCH], ["Day"], True),
        ([("n", "bigint", False), ("day", "string", False), BATCH], [], True),
        ([("n", "bigint", False), ("more", "int", False), ("day", "string", True), BATCH], ["day"], True),
        ([("n", "int", False), ("day", "string", True), BATCH], ["day"], False),
        ([("n", "bigint", False), BATCH], [], False),
        ([("n", "bigint", False), ("day", "string", False), BATCH], ["day"], False),
        ([("n", "bigint", False), ("day", "string", False)], [], False),
    ],
)
def test_rows_fit_a_table_with_their_columns_types_and_partitions(table, partition_by, fit):
    if fit:
        check_columns(ROWS, table, partition_by, "app.rows")
    else:
        with pytest.raises(ConfigError, match=r"do not fit the table app.rows: rows: n bigint, Day string"):
            check_columns(ROWS, table, partition_by, "app.rows")


@pytest.mark.parametrize(("name", "sql"), [("rows", "`rows`"), ("app.rows", "`app`.`rows`"), ("a`b", "`a``b`")])
def test_names_are_quoted_for_spark(name, sql):
    assert quoted(name) == sql
