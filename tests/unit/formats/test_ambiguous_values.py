"""Texts that Spark reads as another number or time than they say."""

import re

import pytest

from headrace.formats.ambiguous_values import (
    DECIMALS,
    TIMES,
    UNDERFLOW_PATTERN,
    UNDERFLOWED_DECIMALS,
    ambiguous_type,
    as_string_schema,
    has_ambiguous_type,
    is_wrong_expr,
    may_be_ambiguous_expr,
    may_be_today_expr,
)


def struct(**fields):
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def array(element):
    return {"type": "array", "elementType": element}


def map_of(value):
    return {"type": "map", "keyType": "string", "valueType": value}


PRICE = struct(price="decimal(10,2)")
SEEN = struct(seen="timestamp")
DAY = 86_400


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("decimal(10,2)", DECIMALS),
        ("timestamp", TIMES),
        ("timestamp_ntz", None),
        ("date", None),
        ("string", None),
        (PRICE, None),
        (array("timestamp"), None),
    ],
    ids=str,
)
def test_decimals_and_times_are_ambiguous(kind, found):
    assert ambiguous_type(kind) is found


@pytest.mark.parametrize(
    ("row", "decimals", "times"),
    [
        (struct(n="long"), False, False),
        (PRICE, True, False),
        (struct(a=struct(b=array(map_of("timestamp")))), False, True),
        (struct(a="decimal(1,0)", b="timestamp"), True, True),
    ],
    ids=str,
)
def test_a_row_has_an_ambiguous_type_at_any_depth(row, decimals, times):
    assert (has_ambiguous_type(row, DECIMALS), has_ambiguous_type(row, TIMES)) == (decimals, times)


# What may be ambiguous in a JSON text: the pattern with the name of the field, and the one without.
MAYBE = [
    (DECIMALS, "1.5", False),
    (DECIMALS, "-12", False),
    (DECIMALS, "1e3", False),
    (DECIMALS, '"1.5"', False),
    (DECIMALS, '"1,5"', True),
    (DECIMALS, '",5"', True),
    (DECIMALS, '"1\\u002c5"', True),
    (DECIMALS, "1e400000000", True),
    (DECIMALS, "1E-400000000", True),
    (DECIMALS, '"1e+4000"', True),
    (TIMES, '"2026-01-01T12:30:00Z"', False),
    (TIMES, '"12:30"', True),
    (TIMES, '"T12:30"', True),
    (TIMES, '" 9:05"', True),
    (TIMES, "1767225600", False),
]


@pytest.mark.parametrize(("of", "value", "maybe"), MAYBE)
def test_a_value_in_json_may_be_ambiguous(of, value, maybe):
    assert bool(re.search(f'"field"{of.after}', f'{{"field": {value}}}')) is maybe
    assert bool(re.search(of.anywhere, f'{{"field":{value}}}')) is maybe


@pytest.mark.parametrize(
    ("of", "text", "wrong"),
    [
        (DECIMALS, "1.5", False),
        (DECIMALS, "1e3", False),
        (DECIMALS, "1,5", True),
        (DECIMALS, "1e4000", True),
        (DECIMALS, "Infinity", True),
        (UNDERFLOWED_DECIMALS, "0.0", True),
        (UNDERFLOWED_DECIMALS, "-0.0", True),
        (UNDERFLOWED_DECIMALS, "1.5\n0.0\n2", True),
        (UNDERFLOWED_DECIMALS, "0.05", False),
        (UNDERFLOWED_DECIMALS, "10.0", False),
        (TIMES, "2026-01-01 12:30:00", False),
        (TIMES, "12:30", True),
        (TIMES, "T12:30", True),
        (TIMES, "2026-01-01\n 9:05", True),
    ],
)
def test_a_value_that_says_something_else_is_wrong(of, text, wrong):
    assert bool(re.search(of.wrong, text)) is wrong


@pytest.mark.parametrize(
    ("json", "underflows"),
    [
        ('{"n": 1e-4000}', True),
        ('{"n":[1, -2.5E-40000 ]}', True),
        ('{"n": 1e-400}', False),
        ('{"n": "1e-4000"}', False),
        ('{"n": 1e4000}', False),
    ],
)
def test_a_number_that_is_zero_as_a_double_is_found(json, underflows):
    assert bool(re.search(UNDERFLOW_PATTERN, json)) is underflows


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (PRICE, ["price"]),
        (struct(b="decimal(1,0)", a=struct(c="decimal(1,0)"), n="long"), ["b", "c"]),
        (struct(**dict.fromkeys("abcd", "decimal(1,0)")), None),  # too many
        (struct(**{"odd name.": "decimal(1,0)"}), None),
        (array("decimal(1,0)"), None),
    ],
    ids=["one", "nested", "many", "odd", "array"],
)
def test_a_few_plain_names_are_looked_for_and_else_any_value(row, names):
    sql = may_be_ambiguous_expr("value", row, DECIMALS)
    if names is None:
        assert sql.count("RLIKE") == 1 and '\\"' not in sql.partition("RLIKE")[0]
    else:
        assert [name for name in names if f"""value RLIKE '"{name}\"""" in sql] == names
        assert sql.count("RLIKE") == len(names)


@pytest.mark.parametrize("now", [20_000 * DAY, 20_000 * DAY + 1, 20_001 * DAY - 1])
def test_a_time_may_be_of_today_from_two_midnights_before(now):
    since = 19_998 * DAY * 1_000_000
    assert may_be_today_expr("row", SEEN, now) == f"(row.`seen` >= timestamp_micros({since}))"


def test_times_without_a_path_may_always_be_of_today():
    assert may_be_today_expr("row", struct(many=array("timestamp")), 0.0) == "true"


@pytest.mark.parametrize(
    ("row", "sql"),
    [
        (SEEN, "coalesce(texts.`seen` RLIKE {}, false)"),
        (struct(n="long", seen=array("timestamp")), "coalesce(array_join(texts.`seen`, '\\n') RLIKE {}, false)"),
    ],
)
def test_wrong_values_are_found_in_single_texts_and_in_many(row, sql):
    pattern = is_wrong_expr("texts", SEEN, TIMES).partition("RLIKE ")[2].removesuffix(", false)")
    assert is_wrong_expr("texts", row, TIMES) == sql.format(pattern)


@pytest.mark.parametrize(
    ("row", "part", "whole"),
    [
        (PRICE, "STRUCT<`price`: STRING>", "STRUCT<`price`: STRING>"),
        (struct(n="long", price="decimal(1,0)"), "STRUCT<`price`: STRING>", "STRUCT<`n`: STRING, `price`: STRING>"),
        (struct(a=array("decimal(1,0)")), "STRUCT<`a`: ARRAY<STRING>>", "STRUCT<`a`: ARRAY<STRING>>"),
        (
            struct(a=map_of(struct(b="decimal(1,0)", c="date"))),
            "STRUCT<`a`: MAP<STRING, STRUCT<`b`: STRING>>>",
            "STRUCT<`a`: MAP<STRING, STRUCT<`b`: STRING, `c`: STRING>>>",
        ),
    ],
    ids=["one", "another column", "array", "map"],
)
def test_the_type_of_a_row_with_texts(row, part, whole):
    assert as_string_schema(row, DECIMALS) == part
    assert as_string_schema(row, DECIMALS, all_columns=True) == whole
