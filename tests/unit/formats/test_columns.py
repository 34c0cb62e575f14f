"""The columns of a format, looked at without Spark."""

import pytest
from pyspark.sql import types

import headrace as hr
from headrace.errors import ConfigError

SCHEMA = types.StructType(
    [
        types.StructField("user name", types.StringType(), nullable=False),
        types.StructField("amount", types.DecimalType(10, 2)),
        types.StructField("at", types.TimestampNTZType()),
        types.StructField("tags", types.ArrayType(types.LongType())),
        types.StructField("more", types.MapType(types.StringType(), types.ByteType())),
        types.StructField("place", types.StructType([types.StructField("la`t", types.DoubleType())])),
    ]
)
DDL = (
    "`user name` string, `amount` decimal(10,2), `at` timestamp_ntz, `tags` array<long>, `more` map<string, byte>,"
    " `place` struct<`la``t`: double>"
)


@pytest.mark.parametrize("make", [hr.Json, hr.Csv, lambda columns: hr.Custom(len, columns)])
def test_a_struct_type_is_taken_for_its_columns(make):
    assert make(SCHEMA).columns == DDL


@pytest.mark.parametrize(
    "ddl",
    [
        "user STRING, page STRING",
        "user: string, page: int",
        "`a, b` DECIMAL ( 10 , 2 ) NOT NULL COMMENT 'it''s, <odd', at TIMESTAMP_NTZ",
        "a ARRAY<STRUCT<x: INT, y: MAP<STRING, ARRAY<BIGINT>>>>, b VARIANT",
        "a INTERVAL DAY TO SECOND, b CHAR(3), c STRING COLLATE UNICODE",
        "a SOMETHING_NEW (3) <x>, b INT",  # a type that only Spark may know
        "STRUCT<a: INT, `b``c`: ARRAY<STRING COLLATE UNICODE NOT NULL>>",
        "a TIMESTAMP WITHOUT TIME ZONE, array ARRAY<INT>, date DATE -- a comment, and < b INT",
        "a INT /* with a ), and more */, b INT",
        "a STRUCT<x: INT, X: INT>",  # as a JSON object may have them
        "a DECIMAL, b DECIMAL(5), c STRUCT<>, d STRING DEFAULT concat('a', 'b') COMMENT 'x', e INT",
        "INT",  # a type, not columns: Spark says so
    ],
)
def test_what_spark_may_take_is_left_to_spark(ddl):
    assert hr.Json(ddl).columns == ddl


@pytest.mark.parametrize(
    ("ddl", "message", "hint"),
    [
        ("id BIGNT", "BIGNT is not a type", "did you mean BIGINT?"),
        ("user STRNG, id INT", "STRNG is not a type", "did you mean STRING?"),
        ("user: strin", "strin is not a type", "did you mean STRING?"),
        ("a STRUCT<x: INTEGR>", "INTEGR is not a type", "did you mean INTEGER?"),
        ("tags ARRAY<STRNG>", "STRNG is not a type", "did you mean STRING?"),
        ("by MAP<STRING, BIGNT>", "BIGNT is not a type", "did you mean BIGINT?"),
        ("by MAP<STRIN, ARRAY<INT>>", "STRIN is not a type", "did you mean STRING?"),
        ("name TEXT", "TEXT is not a type", "did you mean STRING?"),
        ("flag bool", "bool is not a type", "did you mean BOOLEAN?"),
        ("at ARRAY<DATETIME>", "DATETIME is not a type", "did you mean TIMESTAMP?"),
        ("a ARRAY<INT", "< is not closed", "DDL"),
        ("a ARRAY<INT>>", "> closes nothing", "DDL"),
        ("a DECIMAL(10,2", "( is not closed", "DDL"),
        ("a INT,, b INT", "expected a column between two commas", "DDL"),
        ("a INT, b INT, ", "expected a column after the last comma", "DDL"),
        ("a STRUCT<x: INT,>", "expected a column after the last comma", "DDL"),
        ("user, page STRING", "the column user has no type", "DDL"),
        ("`user STRING", "a ` is not closed", "DDL"),
        ("user STRING page STRING", "expected a comma before page", "DDL"),
        ("at TIMESTAMP `user name` STRING", "expected a comma before `user name`", "DDL"),
        ("a STRUCT<x: INT y: INT>", "expected a comma before y", "DDL"),
        ("a STRUCT<x>", "the column x has no type", "DDL"),
        ("id INT, Id STRING", "the column id occurs twice", "DDL"),
        ("tags ARRAY", "ARRAY: expected type parameters as in ARRAY<STRING>", "DDL"),
        ("tags ARRAY<>, b INT", "ARRAY: expected type parameters as in ARRAY<STRING>", "DDL"),
        ("by MAP<STRING>", "MAP: expected type parameters as in MAP<STRING, INT>", "DDL"),
        ("by MAP<STRING, INT, INT>", "MAP: expected type parameters as in MAP<STRING, INT>", "DDL"),
        ("n DECIMAL(39, 2)", "DECIMAL(39, 2): expected at most 38 digits", "DDL"),
        (
            "n ARRAY<NUMERIC(2,5)>",
            "NUMERIC(2, 5): expected at most 38 digits, and no more after the point",
            "DDL",
        ),
    ],
)
@pytest.mark.parametrize("make", [hr.Json, hr.Csv])
def test_a_certain_mistake_is_found_without_spark(make, ddl, message, hint):
    with pytest.raises(ConfigError, match="the schema does not parse") as refused:
        make(ddl)
    assert message in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize("given", [types.StructType, types.LongType(), types.ArrayType(types.LongType()), ["id INT"]])
def test_what_is_no_columns_is_refused(given):
    with pytest.raises(ConfigError, match="has no columns"):
        hr.Json(given)


def test_a_type_without_ddl_is_refused():
    class Point(types.UserDefinedType):
        @classmethod
        def sqlType(cls):
            return types.IntegerType()

        @classmethod
        def module(cls):
            return "points"

        def serialize(self, point):
            return 1

    with pytest.raises(ConfigError, match="udt cannot be written as DDL"):
        hr.Json(types.StructType([types.StructField("p", Point())]))
