"""Checks of arguments: what passes, and the message for what does not."""

import math

import pytest

from headrace.errors import ConfigError
from headrace.support.validation import (
    check_bool,
    check_choice,
    check_duration,
    check_instance,
    check_pattern,
    check_positive,
    check_text,
    check_whole_number,
    column_names,
)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None])
def test_a_whole_number_is_an_integer_and_not_a_bool(value):
    with pytest.raises(ConfigError, match=r"^n: expected a whole number of rows, at least 1, got "):
        check_whole_number("n", value, unit="rows")


def test_a_whole_number_has_limits():
    check_whole_number("port", 65_535, maximum=65_535)
    with pytest.raises(ConfigError, match="port: expected a whole number from 1 to 65,535, got 65536"):
        check_whole_number("port", 65_536, maximum=65_535)


@pytest.mark.parametrize("value", [0, -0.5, math.inf, math.nan, True, "1"])
def test_a_positive_number_is_finite_and_above_0(value):
    with pytest.raises(ConfigError, match=r"^ttl: expected a number of seconds above 0, got "):
        check_positive("ttl", value, unit="seconds")


def test_a_positive_number_has_a_limit():
    check_positive("ttl", 0.5, maximum=1)
    with pytest.raises(ConfigError, match=r"above 0 and up to 1, got 1\.5"):
        check_positive("ttl", 1.5, maximum=1)


def test_a_duration_is_returned_in_seconds():
    assert check_duration("timeout", "10m") == 600.0
    with pytest.raises(ConfigError, match="timeout: expected a duration above 0, got 'soon'"):
        check_duration("timeout", "soon")


def test_a_choice_lists_what_was_expected_and_hints_at_the_nearest():
    check_choice("mode", "upsert", ["append", "upsert"])
    with pytest.raises(ConfigError, match="mode: expected one of append, upsert, got 'upsrt'") as refused:
        check_choice("mode", "upsrt", ["append", "upsert"])
    assert refused.value.hint == "did you mean upsert?"
    with pytest.raises(ConfigError) as refused:
        check_choice("mode", ["append"], ["append", "upsert"])
    assert refused.value.hint == 'mode="append"'


@pytest.mark.parametrize("value", ["", "  ", None, 3])
def test_a_text_is_not_empty(value):
    with pytest.raises(ConfigError, match="table: expected a name, got "):
        check_text("table", value)


def test_a_bool_is_no_number():
    check_bool("split", False)
    with pytest.raises(ConfigError, match="split: expected True or False, got 1"):
        check_bool("split", 1)


@pytest.mark.parametrize("value", ["(", "", None])
def test_a_pattern_compiles_and_is_not_empty(value):
    with pytest.raises(ConfigError, match="pattern: expected a regular expression, got "):
        check_pattern("pattern", value)


def test_columns_are_one_name_or_several():
    assert column_names("key", "user") == ("user",)
    assert column_names("key", ["user", "day"]) == ("user", "day")
    for wrong in ([], "", ["user", 3], 3):
        with pytest.raises(ConfigError, match="key: expected the name of a column, or a list of names, got "):
            column_names("key", wrong)


def test_secrets_of_a_value_are_masked():
    with pytest.raises(ConfigError, match=r"postgresql://user:\*\*\*@") as refused:
        check_instance("sink", "postgresql://user:secret@host/db", int)
    assert "secret" not in str(refused.value)
