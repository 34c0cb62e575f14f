"""The verdict of every kill test: sent rows against stored ones."""

import pytest

from headrace.testing import Difference
from headrace.testing.compare import compare


@pytest.mark.parametrize(
    ("sent", "stored", "missing", "duplicate", "phantom"),
    [
        ("", "", 0, 0, 0),
        ("abc", "cab", 0, 0, 0),
        ("abc", "ac", 1, 0, 0),
        ("abc", "abbbc", 0, 2, 0),
        ("aab", "aab", 0, 0, 0),  # sent twice is no duplicate
        ("aab", "ab", 1, 0, 0),
        ("aab", "aaab", 0, 1, 0),
        ("abc", "abx", 1, 0, 1),  # a corrupted row
        ("abc", "abcxx", 0, 0, 2),
        ("abc", "", 3, 0, 0),
    ],
)
def test_rows_are_counted_as_multisets(sent, stored, missing, duplicate, phantom):
    assert compare(sent, stored) == Difference(missing, duplicate, phantom)


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (Difference(0, 0, 0), "0 missing, 0 duplicate"),
        (Difference(2, 1, 0), "2 missing, 1 duplicate"),
        (Difference(1, 0, 3), "1 missing, 0 duplicate, 3 never sent"),
    ],
)
def test_rows_that_were_never_sent_are_named_only_if_there_are_any(difference, text):
    assert str(difference) == text
