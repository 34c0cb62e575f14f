"""Lengths of time as people write them."""

import math
from datetime import timedelta

import pytest

from headrace.support.durations import duration, seconds


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("1s", timedelta(seconds=1)),
        ("30m", timedelta(minutes=30)),
        ("30 m", timedelta(minutes=30)),
        ("1h", timedelta(hours=1)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("0s", timedelta()),
        ("PT1H30M", timedelta(hours=1, minutes=30)),
        ("P1D", timedelta(days=1)),
        ("P1DT2H3M4S", timedelta(days=1, hours=2, minutes=3, seconds=4)),
    ],
)
def test_a_duration_is_read(text, length):
    assert duration(text) == length


@pytest.mark.parametrize(
    "text", ["", "10", "m", "1.5h", "-1h", "1H", "1h30m", "P", "PT", "P1W", "1 hour", "9" * 30 + "d", "9" * 5000 + "s"]
)
def test_anything_else_is_not_a_duration(text):
    assert duration(text) is None


@pytest.mark.parametrize(
    ("value", "length"),
    [("10m", 600.0), (timedelta(milliseconds=1), 0.001), (3, 3.0), (0.5, 0.5)],
)
def test_seconds_of_a_text_a_length_and_a_number(value, length):
    assert seconds(value) == length


@pytest.mark.parametrize(
    "value", [0, "0s", -1, timedelta(), timedelta(seconds=-1), math.inf, math.nan, True, None, [], "soon"]
)
def test_nothing_that_is_not_above_zero_and_finite_is_a_length(value):
    assert seconds(value) is None
