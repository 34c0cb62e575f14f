"""Which columns may make directories."""

import pytest
from pyspark.sql import types as t

from headrace.connectors.shared.partition_columns import check, find_duplicate, parse_partition_by
from headrace.errors import ConfigError


def schema(**columns):
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


ROWS = schema(day=t.DateType(), kind=t.StringType(), n=t.LongType(), price=t.DoubleType())


@pytest.mark.parametrize(
    ("given", "names"), [(None, ()), ("day", ("day",)), (["day", "kind"], ("day", "kind")), (("day",), ("day",))]
)
def test_partition_columns_are_given_by_name(given, names):
    assert parse_partition_by(given) == names


@pytest.mark.parametrize("given", ["", [], [""], [5], ["day", "Day"], "headrace_batch", ["Headrace_Batch"]])
def test_what_does_not_name_partition_columns_is_refused(given):
    with pytest.raises(ConfigError, match="partition_by"):
        parse_partition_by(given)


@pytest.mark.parametrize(
    ("rows", "partition_by", "reason"),
    [
        (ROWS, [], None),
        (ROWS, ["day"], None),
        (ROWS, ["kind", "n"], None),
        (ROWS, ["price"], "the type double cannot be used"),
        (ROWS, ["month"], "the rows do not have"),
        (ROWS, ["Day"], "the rows do not have"),
        (schema(day=t.DateType()), ["day"], "nothing is left for the files"),
        (schema(a=t.LongType(), A=t.LongType()), [], "two columns named a"),
        (schema(Headrace_batch=t.LongType()), [], "reserved by Headrace"),
    ],
)
def test_rows_can_be_partitioned_or_the_reason_is_reported(rows, partition_by, reason):
    if reason is None:
        check(rows, partition_by, "lake")
    else:
        with pytest.raises(ConfigError, match=f"^lake: .*{reason}"):
            check(rows, partition_by, "lake")


@pytest.mark.parametrize(("names", "duplicate"), [([], None), (["a", "b"], None), (["a", "b", "A"], "a")])
def test_capitals_make_no_difference(names, duplicate):
    assert find_duplicate(names) == duplicate
